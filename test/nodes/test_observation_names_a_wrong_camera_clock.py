"""A camera whose clock is ahead is named, with its topic, instead of a joint."""

import numpy as np
import pytest
from observation_suite import description, joints, observer, until_moment, view

from embodied_kv.nodes.observation.joint_merger import JointInput

AHEAD = 300_000_000  # ns
NAMES = ('hip', 'knee')


@pytest.fixture
def node(robot):
    robot.send = joints(robot)
    return robot.up(
        observer(description(view('front'), joints=(JointInput('joint_states', NAMES),)))
    )


def show(robot, ahead):
    robot.send(hip=1.0, knee=2.0)
    robot.show(robot.now() + ahead, views=('front',), names=())


def test_images_from_the_future_name_the_camera_and_its_clock(robot, node, capfd):
    def refused():
        show(robot, AHEAD)
        robot.spin(0.02)
        return node.warning_counts['stamps ahead'] > 3

    node.inputs.set_instruction('reach')
    robot.until(refused, show=False)
    waits = node.inputs.waits
    assert waits.startswith('images of view front must not be stamped in the future (got 0.')
    assert 'camera/front/image); synchronize the clock of the camera' in waits
    assert 'joint' not in waits and not node.inputs.moments
    assert waits.split(' (got')[0] in capfd.readouterr().err


def test_camera_that_is_right_again_is_used(robot, node):
    node.inputs.set_instruction('reach')
    show(robot, AHEAD)
    robot.until(lambda: node.warning_counts['stamps ahead'], show=False)
    moment = until_moment(robot, node, lambda: show(robot, 0))
    np.testing.assert_array_equal(moment.state.positions, [1.0, 2.0])
    assert node.inputs.waits == ''


def test_slightly_different_clocks_are_accepted(robot, node):
    until_moment(robot, node, lambda: show(robot, AHEAD // 10))
    assert not node.warning_counts
