"""A robot without an instruction makes frames while it is watched, but no actions."""

from concurrent.futures import Future

import pytest
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from embodied_kv.nodes.common.conversions import stamp
from embodied_kv.nodes.perception import Perception

SECOND = 10**9


@pytest.fixture
def standing(robot):
    """Return the session of a robot without an instruction and without a scene."""
    node = robot.up(Perception, instruction='')
    session = node.host.session(node.robot)
    robot.until(lambda: robot.show() or session.participants.scene() is None)
    return session


@pytest.fixture
def device(robot, standing):
    """Return the engine thread of that robot."""
    (node,) = (node for node in robot.suite if isinstance(node, Perception))
    return node.host.device


def test_watched_standing_robot_prefills_frames_without_actions(robot, standing):
    with standing.observer.watching():
        robot.until(lambda: standing.participants.scene() is not None)
    assert not robot.handles, 'a frame that nobody is told of has no action'


def test_who_asks_what_is_seen_now_gets_it_and_stops_watching(robot, standing):
    with standing.observer.watching():
        robot.until(lambda: standing.participants.scene() is not None)
        assert standing.observer.present_scene() is not None
    assert not standing.observer.is_watched


def test_a_frame_that_was_made_before_the_instruction_is_not_acted_upon(robot, standing, device):
    prefill, made = device.prefill, {}

    def noted(observation, done):
        made[observation.sequence] = observation.instruction
        return prefill(observation, done)

    device.prefill = noted
    with standing.observer.watching():
        robot.until(lambda: standing.participants.scene() is not None)
        robot.instruction.publish(String(data='wave'))
        robot.until(lambda: robot.handles)
    assert '' in made.values() and {made[h.sequence] for h in robot.handles} == {'wave'}


def test_it_is_not_seen_before_there_is_a_frame_to_ask_about(robot, standing, device):
    prefill, late = device.prefill, []

    def held_up(observation, done):
        late.append(Future())
        return late[-1]

    device.prefill = held_up
    with standing.observer.watching():
        robot.until(lambda: late)
        assert standing.participants.scene() is None
        device.prefill = prefill
        robot.until(lambda: standing.participants.scene() is not None)


def test_where_the_world_is_slow_it_is_seen_as_often(robot):
    clock = robot.node.create_publisher(Clock, '/clock', 10)
    node = robot.up(Perception, instruction='', use_sim_time=True)
    prefill, made = node.host.device.prefill, []
    node.host.device.prefill = lambda *of: made.append(0) or prefill(*of)

    def world(moments):
        """Publish the clock and images in steps of 20 ms, slower than real time."""
        for at in moments:
            clock.publish(Clock(clock=stamp(at)))
            robot.show(stamp=at)
            robot.spin(0.05)

    with node.host.session(node.robot).observer.watching():
        world(range(50 * SECOND, 51 * SECOND, SECOND // 50))
        assert len(made) >= 2
    robot.node.destroy_publisher(clock)


def test_where_nobody_makes_frames_none_is_waited_for(robot, standing):
    assert standing.observer.has_source
    (node,) = (node for node in robot.suite if isinstance(node, Perception))
    node.trigger_deactivate()
    assert not standing.observer.has_source and standing.observer.present_scene() is None
