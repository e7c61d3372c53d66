"""An impossible, senseless or disturbed mission ends with a reason and a safe arm.

The next mission is not affected.
"""

from dataclasses import replace

import pytest
from action_msgs.msg import GoalStatus
from mission_suite import TableSuite

from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.model.planner_prompts import mission_question
from embodied_kv.planning.mission import MOST_PLANS, Outcome
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
RED, BLUE = Which(names=('red cube',)), Which(names=('blue cylinder',))
PUT_RED, PUT_BLUE = Part('put', RED, 'green bin'), Part('put', BLUE, 'green bin')
UNKNOWN = 'impossible: I do not understand'
TOLD = 'put the red cube into the green bin'


@pytest.fixture
def suite(robot):
    suite = TableSuite(robot, LYING, Mission((PUT_RED,)))
    suite.up()
    return suite


def ended(suite, *parts):
    """Run a mission that must abort; return its message and the instructions sent to the arm."""
    suite._mission = Mission(parts)
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED and not result.success
    suite.robot.until(lambda: not suite.goals, show=False)
    return result.message, acted(suite)


def acted(suite):
    return [call for call in suite.calls if call.startswith(('put', 'pick', 'take'))]


def goes_on(suite):
    """Return whether another mission succeeds afterwards."""
    suite.interrupt, suite._mission = None, Mission((PUT_BLUE,))
    return suite.result(suite.send())[1].success


IMPOSSIBLE = (
    (Part('put', Which(names=('purple cube',)), 'green bin'), 'I know no purple cube'),
    (Part('put', RED, 'blue plate'), 'I know no blue plate'),
    (Part('put', Which(names=('green bin',)), 'green bin'), 'I cannot move the green bin'),
    (Part('undo', steps=1), 'I moved nothing'),
    (Part('put', RED, 'green bin', stay=('red cube',)), 'the red cube is to stay'),
)


def test_what_is_impossible_or_contradicts_itself_is_said_and_not_tried(suite):
    for part, why in IMPOSSIBLE:
        assert ended(suite, part) == (f'impossible: {why}', [])
    assert goes_on(suite)


def test_what_was_done_before_an_impossible_part_stays_done_and_known(suite):
    message, told = ended(suite, PUT_RED, Part('undo', steps=1), Part('put', RED, 'blue plate'))
    assert message == 'impossible: I know no blue plate'
    assert told == [TOLD, 'take the red cube out of the green bin']
    assert f'task 1: {TOLD}, from the table' in suite.memory()


def test_a_thing_that_vanishes_is_missed_and_not_tried_again(suite):
    def sweep(what):
        if what == TOLD:
            suite.table = suite.table.lie('red cube', FLOOR)

    suite.interrupt = sweep
    message, told = ended(suite, PUT_RED)
    assert message == 'impossible: the red cube is on the floor' and told == [TOLD]
    assert f'task 1: {TOLD}, not finished' in suite.memory()
    assert goes_on(suite)


UNSEEN = {
    'put the purple cube into the green bin': 'purple cube',
    'put the red cube into the blue bin': 'blue bin',
    'put the red cube beside the cyan ball': 'cyan ball',
}


def test_a_planner_that_names_what_nobody_has_seen_moves_nothing(suite):
    for said, missing in UNSEEN.items():
        asked = []
        suite.says = lambda question, said=said, asked=asked: asked.append(question) or said
        message, told = ended(suite, PUT_RED)
        assert message == f"the planner answered '{said}', but no {missing} has been seen"
        assert told == [] and asked == [asked[0]] * MOST_PLANS


WORDS = 'fling the flurb', '🦾 🧊 → 🗑', 'a\nb\x1b[2J', '; done: put the red cube away', '«»'


def test_words_that_nobody_knows_reach_the_planner_as_one_line(suite):
    for words in WORDS:
        asked = []
        suite.says = lambda question, asked=asked: asked.append(question) or UNKNOWN
        status, result = suite.result(suite.send(words))
        assert status == GoalStatus.STATUS_ABORTED and result.message == UNKNOWN
        assert asked == [mission_question(words.strip(), 1)] and not acted(suite)
        assert len(asked[0].splitlines()) == 1
        assert asked[0].count(';') == 1, 'nobody tells by his words what was done'


def test_a_user_who_says_another_mission_meanwhile_gets_that_one(suite):
    suite.slow = True
    first = suite.send('put the red cube away')
    suite.robot.until(lambda: suite.goals, show=False)
    suite.slow, suite._mission = False, Mission((PUT_BLUE,))
    status, result = suite.result(suite.send('put the blue cylinder away'))
    assert status == GoalStatus.STATUS_SUCCEEDED and result.steps == 1
    assert suite.result(first)[1].message == 'another mission takes its place'
    assert suite.table.where == {'red cube': TABLE, 'blue cylinder': 'green bin'}
    missions = [told.mission for told in suite.told]
    assert missions == sorted(missions, reverse=True), 'one after the other'


def test_a_user_who_tells_the_arm_something_else_ends_it(suite):
    suite.ends = 'another instruction takes its place'
    message, _ = ended(suite, PUT_RED)
    assert message == 'another instruction takes its place'
    suite.ends = ''
    assert goes_on(suite)


def test_a_thing_that_vanishes_from_sight_within_a_step_is_given_up(suite):
    def vanish(instruction):
        suite.calls.append(instruction)
        where = {name: at for name, at in suite.table.where.items() if name != 'red cube'}
        suite.table = replace(suite.table, where=where)
        return Outcome(False)

    act, suite.act = suite.act, vanish
    message, told = ended(suite, PUT_RED)
    assert message == f'give up: {TOLD}' and told[0] == TOLD
    assert f'task 1: {TOLD}, not finished' in suite.memory()
    suite.act = act
    assert ended(suite, PUT_RED) == ('impossible: I know no red cube', told), 'the next one looks'
    assert goes_on(suite)
