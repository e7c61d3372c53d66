"""Stamps follow /clock; deadlines follow the steady clock."""

import pytest
from own_folder import loose_contract
from rosgraph_msgs.msg import Clock

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.conversions import nanoseconds, stamp
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception

SECOND = 10**9


@pytest.fixture
def world(robot):
    """Start a suite; return a function that sets its clock and publishes a frame."""
    clock = robot.node.create_publisher(Clock, '/clock', 10)
    robot.follows = False  # its motion is not in simulated time
    options = dict(use_sim_time=True, contract=loose_contract())
    nodes = robot.up(Perception, Action, Language, **options)

    def at(moment):
        clock.publish(Clock(clock=stamp(moment)))
        robot.until(
            lambda: all(node.get_clock().now().nanoseconds == moment for node in nodes),
            show=False,
        )
        robot.show(stamp=moment)

    return at


def fresh(robot):
    return [chunk for chunk in robot.chunks if chunk.source == ActionChunk.FRESH]


def run(robot, world, start):
    """Publish frames from a moment on, until a chunk is about one of them."""
    before, moment = len(fresh(robot)), start
    while len(fresh(robot)) <= before or not start <= last(robot) <= moment:
        assert moment < start + 100 * SECOND
        moment += SECOND // 10
        world(moment)
        robot.spin(0.1)


def last(robot):
    return nanoseconds(fresh(robot)[-1].header.stamp)


def test_chunks_answer_stamps_of_the_simulated_clock_in_time(robot, world):
    run(robot, world, 50 * SECOND)
    assert 50 * SECOND < last(robot) < 160 * SECOND
    assert fresh(robot)[-1].age < 50  # s of the steady clock
    assert nanoseconds(robot.trajectories[-1].header.stamp) < 160 * SECOND


def test_a_clock_that_jumps_back_is_survived(robot, world):
    run(robot, world, 5000 * SECOND)
    run(robot, world, 10 * SECOND)
    assert last(robot) < 160 * SECOND


def test_a_clock_that_runs_at_another_speed_does_not_move_deadlines(robot, world):
    moment = 100 * SECOND
    while len(fresh(robot)) < 3:
        moment += 5 * SECOND
        world(moment)
        robot.spin(0.1)
        assert moment < 10_000 * SECOND
