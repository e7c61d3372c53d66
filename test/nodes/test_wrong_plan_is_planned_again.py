"""A wrong plan moves nothing and is not remembered; the mission plans again.

Whatever the planner answers, the mission ends.
"""

from itertools import chain, repeat
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_robot import TableRobot

from benchmarks.whole.robot import FleetRobot
from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.demo.sim.table_memory import TABLE, refusal
from embodied_kv.nodes.missions.adapter import MissionAdapter
from embodied_kv.planning.mission import (
    MOST_ANSWERS,
    MOST_PLANS,
    MOST_STEPS,
    Mission,
    MissionState,
    Robot,
)
from training.planner.missions import Mission as Parsed
from training.planner.missions import Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
PUT_RED = 'put the red cube into the green bin'
WRONG = {
    'fling the flurb': "the planner answered 'fling the flurb', which is no instruction",
    'put the purple cube into the green bin': 'no purple cube has been seen',
    'put the red cube into the blue bin': 'no blue bin has been seen',
    'push the cyan ball to the left': 'no cyan ball has been seen',
    ' ': 'the planner returned no text',
}


def begun(*said, state=None):
    """Return a robot with a mission, whose planner gives these answers and then correct ones."""
    mission = Parsed((Part('put', Which(names=('red cube',)), 'green bin'),))
    robot = TableRobot(LYING, mission)
    right, answers = robot.says, iter(said)
    robot.asked = []

    def says(question):
        robot.asked.append(question)
        answer = next(answers, None)
        return right(question) if answer is None else answer

    robot.says = says
    robot.run = Mission(robot, state or MissionState('tidy up'))
    return robot


@pytest.mark.parametrize('wrong', WRONG)
def test_a_wrong_plan_moves_nothing_and_the_robot_looks_and_plans_anew(wrong):
    robot = begun(wrong)
    end = robot.run.run()
    assert end.success and end.state.steps == 1
    assert robot.calls == ['look', 'look', 'mark', PUT_RED, 'look']
    assert robot.asked[0] == robot.asked[1], 'nobody tells the planner that it was tried'
    tasks = [text for text in robot.memory() if text.startswith('task ')]
    assert tasks == [f'task 1: {PUT_RED}, from the table']


@pytest.mark.parametrize('wrong', WRONG)
def test_a_plan_that_stays_wrong_ends_the_mission_with_the_reason(wrong):
    robot = begun(*[wrong] * MOST_PLANS)
    end = robot.run.run()
    assert not end.success and end.why.endswith(WRONG[wrong])
    assert robot.calls == ['look'] * MOST_PLANS == ['look'] * len(robot.asked)
    assert not end.state.tried and not any(text.startswith('task') for text in robot.memory())


def test_each_step_has_as_many_plans():
    wrong = ['fling it'] * (MOST_PLANS - 1)
    robot = begun(*wrong, PUT_RED, *wrong)
    assert robot.run.run().success and len(robot.asked) == 2 * MOST_PLANS + 1


def test_a_step_that_was_cut_off_is_planned_anew_where_its_thing_is_unknown_now():
    cut = MissionState('tidy up', acting='put the purple cube into the green bin')
    robot = begun(state=cut)
    end = robot.run.run()
    assert end.success and end.state.steps == 1
    assert [call for call in robot.calls if call not in ('look', 'mark')] == [PUT_RED]


def test_a_planner_that_says_done_for_ever_is_ended():
    robot = begun(*repeat('done', 2 * MOST_ANSWERS))
    end = robot.run.run()
    assert not end.success and f'not finished after {MOST_ANSWERS} answers' in end.why
    assert len(robot.asked) == end.state.answers == MOST_ANSWERS


SAID = st.sampled_from(['done', 'say: hello', PUT_RED, 'pick up the red cube', 'fling it', ' '])


@given(st.lists(SAID, min_size=1, max_size=4))
def test_whatever_a_planner_says_for_ever_it_is_ended(said):
    robot = begun(*chain(*repeat(said, MOST_ANSWERS)))
    end = robot.run.run()
    assert not end.success
    assert len(robot.asked) <= MOST_ANSWERS and end.state.steps <= MOST_STEPS


def test_answers_count_on_where_a_mission_goes_on():
    robot = begun(*repeat('done', MOST_ANSWERS), state=MissionState('tidy up', answers=97))
    robot.run.run()
    assert len(robot.asked) == MOST_ANSWERS - 97


@pytest.mark.parametrize('robot', [MissionAdapter, FleetRobot])
def test_every_robot_refuses_what_a_mission_asks_it_about(robot):
    asked = [name for name in vars(Robot) if not name.startswith('_')]
    assert 'refusal' in asked and all(callable(getattr(robot, name, None)) for name in asked)
    own = SimpleNamespace(memory=words, _known=known, _domain=TabletopDomain(), _on_fault=str)
    for instruction in (PUT_RED, *WRONG):
        assert robot.refusal(own, instruction) == refusal(instruction, LYING)


def words():
    return tuple(fact.text for fact in LYING.facts())


def known():
    return [(fact.id, fact.kind, fact.text) for fact in LYING.facts()]
