"""A mission that waits for its robot ends when it can; other missions, and its arm, at once."""

import threading

import pytest
from action_msgs.msg import GoalStatus
from fleet_suite import Fleets
from test_fleet_robots_carry_out_missions import MissionRobot

from embodied_kv.nodes.fleet.missions import LAST_WORDS


@pytest.fixture
def two(robots, tmp_path):
    fleet = Fleets(robots, tmp_path)
    fleet.up(language=False, missions=True)
    return MissionRobot(fleet, 'red cube', 'green bin'), MissionRobot(
        fleet, 'blue cylinder', 'blue bin', seed=1
    )


@pytest.fixture
def silent(two):
    """When one of them is looked at, that takes until `answers`: `looked`, `answers`."""
    actor = two[0].fleet.node._missions.actors[two[0].space]
    look, looked, answers = actor.look, threading.Event(), threading.Event()

    def wait():
        looked.set()
        assert answers.wait(100.0)
        return look()

    actor.look = wait
    yield looked, answers
    answers.set()


def test_another_robots_cancel_is_heard_while_a_cancelled_mission_waits_for_its_robot(two, silent):
    (one, other), (looked, answers) = two, silent
    other.slow = True
    first, second = one.send(), other.send()
    one.robot.until(lambda: looked.is_set() and other.goals, show=False)
    one.robot.until(first.cancel_goal_async().done, show=False)
    one.robot.until(lambda: one.node.mission.state is None, show=False)
    one.robot.until(second.cancel_goal_async().done, show=False)
    assert other.result(second)[0] == GoalStatus.STATUS_CANCELED
    one.robot.until(lambda: not other.goals, show=False)
    assert not one.node.mission.settle()
    answers.set()
    assert one.result(first)[0] == GoalStatus.STATUS_CANCELED


def test_a_mission_begins_when_the_one_before_it_is_over(two, silent):
    (one, _), (looked, answers) = two, silent
    first = one.send('wait')
    one.robot.until(looked.is_set, show=False)
    second, third = one.send('in vain'), one.send()
    status, result = one.result(second)
    assert status == GoalStatus.STATUS_ABORTED and 'takes its place' in result.message
    answers.set()
    assert one.result(first)[0] == GoalStatus.STATUS_ABORTED
    assert one.result(third)[1].success
    one.robot.until(lambda: one.told[-1].success, show=False)
    begun = list(dict.fromkeys(told.mission for told in one.told if told.running))
    assert begun == ['wait', 'tidy up']


def test_a_robot_that_leaves_amid_a_look_ends_its_mission_for_that_reason(two, silent):
    (one, other), (looked, answers) = two, silent
    other.slow = True
    goal, _ = one.send(), other.send()
    asked = goal.get_result_async()
    one.robot.until(lambda: looked.is_set() and other.goals, show=False)
    for publisher in (one.asker.requests, one.asker.finished):
        one.asker.node.destroy_publisher(publisher)
    missions = one.fleet.node._missions
    one.robot.until(lambda: one.space not in missions.actors, show=False)
    one.robot.spin(2 * LAST_WORDS)
    answers.set()
    status, result = one.heard(asked)
    assert (status, result.message) == (GoalStatus.STATUS_ABORTED, 'the robot has gone')
    assert other.goals and other.node.mission.state is not None
