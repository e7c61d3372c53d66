"""A continuous joint is observed without jumps, and within half a turn when a task begins."""

import math

import pytest
from observation_suite import description, joints, observer, until_moment, view

from embodied_kv.control.plausibility import Bounds
from embodied_kv.nodes.observation import inputs
from embodied_kv.nodes.observation.joint_merger import JointInput


def test_state_is_continuous_until_the_next_instruction(robot, monkeypatch):
    bounds = {'hip': Bounds(velocity=2.0, continuous=True)}
    monkeypatch.setattr(inputs, '_bounds', lambda node: bounds)
    hip = JointInput('joint_states', ('hip',))
    node = robot.up(observer(description(view('front'), joints=(hip,))))
    send, angle = joints(robot), 2.9

    def show():
        nonlocal angle
        angle += 0.01  # less than a joint of 2 rad/s may turn between two images
        stamp = robot.now()
        send(stamp, hip=math.remainder(angle, 2 * math.pi))
        robot.show(stamp, views=('front',), names=())

    node.inputs.set_instruction('reach')
    for _ in range(60):
        moment = until_moment(robot, node, show)
        assert abs(moment.state.positions[0] - angle) < 0.5  # no jump by a turn
    assert angle > 3.4 and moment.state.positions[0] > math.pi
    node.inputs.set_instruction('push')
    moment = until_moment(robot, node, show)
    assert moment.state.positions[0] == pytest.approx(angle - 2 * math.pi, abs=0.5)
