"""A robot that has nothing to do is looked at while somebody watches; nobody acts upon it."""

import pytest
from std_msgs.msg import String

from embodied_kv.nodes.perception import Perception

PERIOD = 0.2  # s, as in conftest


@pytest.fixture
def standing(robot):
    """The session of a robot that stands, and sees nothing."""
    node = robot.up(Perception, instruction='')
    session = node.host.session(node.robot)
    robot.until(lambda: robot.show() or session.scene() is None)
    return session


def test_it_is_seen_and_no_action_answers_the_frame(robot, standing):
    with standing.sight.watching():
        robot.until(lambda: standing.scene() is not None)
    assert not robot.handles, 'a frame that nobody is told of has no action'


def test_who_asks_what_is_seen_now_gets_it_and_stops_watching(robot, standing):
    with standing.sight.watching():
        robot.until(lambda: standing.scene() is not None)
        assert standing.sight.now() is not None
    assert not standing.sight.is_watched


def test_a_frame_that_was_made_before_the_instruction_is_not_acted_upon(robot, standing):
    with standing.sight.watching():
        robot.until(lambda: standing.scene() is not None)
    seen = standing.scene().stamp
    robot.instruction.publish(String(data='wave'))
    robot.until(lambda: robot.handles)
    stamp = robot.handles[0].header.stamp
    assert stamp.sec * 10**9 + stamp.nanosec > seen


def test_where_nobody_makes_frames_none_is_waited_for(robot, standing):
    assert standing.sight.is_open
    (node,) = (node for node in robot.suite if isinstance(node, Perception))
    node.trigger_deactivate()
    assert not standing.sight.is_open and standing.sight.now() is None
