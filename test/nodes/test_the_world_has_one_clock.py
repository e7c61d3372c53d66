"""Ages and timeouts are measured in ROS time if it is simulated, else on the steady clock."""

import time

import numpy as np
import pytest
from observation_suite import description, joints, observer, until_moment, view
from rosgraph_msgs.msg import Clock

from embodied_kv.nodes.common.conversions import stamp

SECOND = 10**9


@pytest.fixture
def world(robot):
    """Start an observer; return a function that sets its simulated clock."""
    clock = robot.node.create_publisher(Clock, '/clock', 10)
    node = robot.up(observer(description(view('front'), joints=())), use_sim_time=True)

    def at(seconds):
        clock.publish(Clock(clock=stamp(round(seconds * SECOND))))
        robot.until(lambda: abs(node.inputs.clock.now() - seconds) < 1e-6, show=False)
        return node

    at.show = lambda seconds: robot.show(round(seconds * SECOND), views=('front',), names=())
    yield at
    robot.node.destroy_publisher(clock)


def seen(robot, world, at, taken):
    node = world(at)
    return until_moment(robot, node, lambda: world.show(taken))


def test_a_moment_is_of_simulated_time_and_a_deadline_of_the_steady_clock(robot, world):
    moment = seen(robot, world, at=50.0, taken=49.9)
    clock = world(50.0).inputs.clock
    assert moment.taken == pytest.approx(49.9) and moment.received == pytest.approx(50.0)
    assert clock.to_steady(moment.taken) - time.monotonic() == pytest.approx(-0.1, abs=0.05)


def test_while_the_simulation_stands_no_camera_falls_silent(robot, world):
    seen(robot, world, at=50.0, taken=50.0)
    inputs = world(50.0).inputs
    time.sleep(inputs.timeout + 0.1)
    assert inputs._sync.missing(inputs.now()) == ()
    world(50.0 + inputs.timeout + 0.1)
    assert inputs._sync.missing(inputs.now()) == ('front',)


def test_an_image_that_is_old_in_simulated_time_is_not_used(robot, world):
    node = world(50.0)
    robot.until(lambda: world.show(48.0) or node.warning_counts['old stamps'], show=False)
    assert not node.inputs.moments and 'the image of front is 2.0 s old' in node.inputs.waits


@pytest.mark.parametrize('first, then', [(5000.0, 10.0), (0.0, 5000.0)])
def test_a_clock_that_jumps_starts_anew(robot, world, first, then):
    if first:
        seen(robot, world, at=first, taken=first)
    moment = seen(robot, world, at=then, taken=then)
    assert moment.stamp == then * SECOND
    assert world(then).inputs._sync.missing(then) == ()


def test_on_the_steady_clock_a_stamp_from_the_future_is_of_now(robot):
    node = robot.up(observer(description(view('front'), joints=())))
    ahead = robot.now() + 5 * SECOND
    moment = until_moment(robot, node, lambda: robot.show(ahead, ('front',), names=()))
    assert moment.stamp == ahead
    assert moment.taken == pytest.approx(moment.received, abs=0.01)
    assert abs(moment.received - time.monotonic()) < 5


def test_joints_that_come_after_their_image_are_waited_for(robot):
    """Six exact moments are enough: a busy machine sometimes delays the joints for too long."""
    node = robot.up(observer(description(view('front'))))
    say = joints(robot)
    robot.until(lambda: node.count_publishers('joint_states') == 2, show=False)
    began = robot.now()

    def exact():
        return [m for m in node.inputs.moments[3:] if m.state.stamp == m.stamp]

    def tick():
        at = robot.now()
        robot.show(at, ('front',), names=())
        robot.spin(0.005)  # the image has arrived
        say(at, hip=(at - began) / SECOND, knee=0.0)
        robot.spin(0.045)

    for _ in range(60):
        tick()
        if len(exact()) >= 6:
            break
    assert len(exact()) >= 6
    for moment in exact():
        expected = [(moment.stamp - began) / SECOND, 0.0]
        np.testing.assert_allclose(moment.state.positions, expected, atol=1e-6)
