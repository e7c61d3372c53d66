"""A mission runs step by step: plan, act, query the scene, remember.

It ends when it is done or given up, and it can resume from a stored state.
"""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from table_robot import TableRobot

from embodied_kv.capsule.capsule import facts_of
from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.planning.mission import (
    MOST_PLANS,
    Mission,
    MissionInterruptedError,
    MissionState,
    Outcome,
    read_state,
)
from embodied_kv.planning.mission import next_step as next_sentence
from training.planner.mission_draws import draw_mission, draw_table
from training.planner.mission_oracle import next_step
from training.planner.mission_rollout import roll_out
from training.planner.missions import Mission as Parsed
from training.planner.missions import Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
TIDY = Parsed(
    (
        Part('put', Which(names=('red cube', 'blue cylinder')), 'green bin'),
        Part('say', Which(), 'green bin', about='inside'),
    )
)


def begun(robot, state=None, **how):
    robot.run = Mission(robot, state or MissionState('tidy up'), **how)
    return robot.run


def test_the_query_of_the_whole_scene_gets_the_words_of_the_mission():
    given = []

    class Robot(TableRobot):
        def look(self, instruction='', mission=''):
            given.append((instruction, mission))
            super().look(instruction, mission)

    begun(Robot(LYING, TIDY)).run()
    step = 'put the red cube into the green bin'
    assert given[:2] == [('', 'tidy up'), (step, '')]


def test_each_step_is_marked_acted_looked_at_and_remembered():
    robot = TableRobot(LYING, TIDY)
    end = begun(robot).run()
    assert end.success and end.state.steps == 3
    steps = 'put the red cube into the green bin', 'put the blue cylinder into the green bin'
    wanted = ['look']
    for step in steps:
        wanted += ['mark', step, 'look']
    assert [call for call in robot.calls if call] == wanted
    said = ['the green bin holds the blue cylinder and the red cube']
    assert robot.said == said == list(end.state.said)
    assert 'task 1: put the red cube into the green bin, from the table' in robot.memory()
    assert 'last move of the blue cylinder: task 2' in robot.memory()


@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.7]))
@example(768, 1.0)  # a held object is put down for another step
@example(1340, 1.0)  # an object that is moved back was held before its move
def test_what_the_rules_do_with_the_truth_a_mission_does_from_what_was_seen(seed, success):
    rng = np.random.default_rng(seed)
    table = draw_table(rng, 5)
    mission = draw_mission(rng, table)
    robot = TableRobot(table, mission, success, seed)
    end = begun(robot).run()
    last = next_step(mission, robot.table, robot._progress())
    assert end.success == (last.kind == 'over')
    if success == 1.0:
        *_, turn = roll_out(mission, table, np.random.default_rng(0), 1.0)
        assert robot.table.where == turn.table.where
        assert end.success == (turn.right.kind == 'over')


def test_a_thing_on_the_floor_stays_known_although_it_is_not_seen():
    table = SimulatedTable({'red cube': TABLE, 'blue cylinder': FLOOR}, ('green bin',))
    asks = Parsed((Part('say', Which(names=('blue cylinder',)), about='where'),))
    robot = TableRobot(table, asks)
    assert begun(robot).run().success
    assert robot.said == ['the blue cylinder is on the floor']


def test_a_failed_step_rewinds_the_computation_and_is_planned_anew():
    robot = TableRobot(LYING, TIDY, success=0.0)
    end = begun(robot).run()
    assert not end.success and end.why.startswith('give up: put the red cube')
    acted = [call for call in robot.calls if call.startswith(('put', 'pick'))]
    assert robot.calls.count('rewind') == len(acted) == end.state.steps > 1
    assert f'task 1: {acted[0]}, not finished' in robot.memory()
    stays = TableRobot(LYING, TIDY, success=0.0)
    begun(stays, rewinds=False).run()
    assert 'rewind' not in stays.calls


def test_a_step_that_is_said_to_be_done_and_is_not_is_in_vain():
    robot = TableRobot(LYING, TIDY)
    act = robot.act

    def boast(instruction):
        robot.calls.append(instruction)
        robot._before = robot.table
        return Outcome(True) if instruction.startswith('put the red') else act(instruction)

    robot.act = boast
    end = begun(robot).run()
    assert not end.success and end.why.startswith('give up: put the red cube')
    red = [one.done for one in end.state.tried if one.step.startswith('put the red')]
    assert red and not any(red) and end.state.steps < 8
    assert 'task 1: put the red cube into the green bin, not finished' in robot.memory()


def test_a_step_counts_once_the_scene_query_agrees():
    robot = TableRobot(LYING, TIDY)
    act, tries = robot.act, []

    def slip(instruction):  # the first put slips out of the bin after the policy's report
        tries.append(instruction)
        if len(tries) > 1:
            return act(instruction)
        robot._before = robot.table
        return Outcome(True)

    robot.act = slip
    end = begun(robot).run()
    assert end.success and robot.table.inside('green bin') == ['blue cylinder', 'red cube']
    assert tries[:2] == ['put the red cube into the green bin'] * 2 and len(tries) == 3
    assert 'task 1: put the red cube into the green bin, from the table' in robot.memory()


def test_a_step_is_remembered_if_its_scene_query_is_interrupted():
    robot = TableRobot(LYING, TIDY)
    look = robot.look

    def interrupt(instruction='', mission=''):
        if instruction:
            raise MissionInterruptedError('the arm is stopped')
        look()

    robot.look = interrupt
    assert begun(robot).run().why == 'the arm is stopped'
    assert 'task 1: put the red cube into the green bin, from the table' in robot.memory()


def test_a_scene_query_that_disagrees_twice_is_outvoted():
    robot = TableRobot(LYING, TIDY)
    robot.confirms, robot.plan = lambda instruction: False, next_sentence
    robot.act, robot._before = lambda instruction: Outcome(True), LYING
    states = []
    state = MissionState('put the blue cylinder into the green bin')
    assert begun(robot, state, on_state=states.append).run().success
    assert [one.done for one in max((s.tried for s in states), key=len)] == [False, True]


def test_an_interrupted_mission_says_why_and_where_it_was():
    robot = TableRobot(LYING, TIDY)

    def interrupt(what):
        if what.startswith('put the blue'):
            raise MissionInterruptedError('the arm is stopped')

    robot.interrupt = interrupt
    end = begun(robot).run()
    assert not end.success and end.why == 'the arm is stopped'
    assert end.state.acting == 'put the blue cylinder into the green bin'


def test_a_mission_goes_on_from_its_facts_with_the_step_that_was_cut_off():
    robot = TableRobot(LYING, TIDY)

    def interrupt(what):
        if what.startswith('put the blue'):
            raise MissionInterruptedError('killed')

    robot.interrupt = interrupt
    facts = json.loads(json.dumps(facts_of(begun(robot).run().state)))
    robot.interrupt, robot.calls = None, []
    end = begun(robot, read_state(facts)).run()
    assert end.success and end.state.steps == 3
    assert [call for call in robot.calls if call.startswith('put')] == [facts['acting']]


def test_every_change_is_told():
    told = []
    end = begun(TableRobot(LYING, TIDY), on_state=told.append).run()
    assert told[-1] == end.state and [state.part for state in told] == sorted(
        state.part for state in told
    )


def test_a_planner_without_an_answer_ends_it():
    robot = TableRobot(LYING, TIDY)
    asked = []
    robot.says = lambda question: asked.append(question) or ' '
    end = begun(robot).run()
    assert not end.success and 'returned no text' in end.why and len(asked) == MOST_PLANS


def test_a_planner_that_never_ends_is_ended():
    robot = TableRobot(LYING, TIDY)
    robot.says = lambda question: 'say: hello'
    end = begun(robot).run()
    assert not end.success and 'not finished after' in end.why


def test_a_state_from_before_answers_and_time_were_noted_is_read():
    facts = facts_of(MissionState('tidy up', answers=3, step_time_limit=2.5))
    assert read_state(facts) == MissionState('tidy up', answers=3, step_time_limit=2.5)
    del facts['answers'], facts['step_time_limit']
    assert read_state(facts) == MissionState('tidy up')


@pytest.mark.parametrize(
    'change',
    [
        dict(words=' '),
        dict(part=0),
        dict(part='one'),
        dict(tried=[{'step': 'x'}]),
        dict(moves=None),
        dict(steps=-1),
        dict(answers=-1),
        dict(step_time_limit=-1.0),
        dict(step_time_limit='nan'),
    ],
)
def test_a_damaged_state_is_refused(change):
    with pytest.raises(ValueError, match='mission state must have'):
        read_state(facts_of(MissionState('tidy up')) | change)
    with pytest.raises(ValueError, match='mission state must have'):
        read_state(None)
