"""A trajectory carries its start time, unless its controller runs at half speed or slower."""

import pytest
from std_msgs.msg import Float64

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.conversions import nanoseconds
from embodied_kv.nodes.control.controller_states import SPEED_SCALING
from embodied_kv.nodes.perception import Perception


@pytest.mark.parametrize('percent, is_stamped', [(None, True), (80.0, True), (30.0, False)])
def test_stamp_depends_on_the_speed_scaling(robot, monkeypatch, percent, is_stamped):
    _, action = robot.up(Perception, Action)
    monkeypatch.setattr(action._joints, 'clocks_agree', lambda: True)
    publisher = robot.node.create_publisher(Float64, SPEED_SCALING, qos.SENSOR)

    if percent is not None:
        robot.node.create_timer(0.05, lambda: publisher.publish(Float64(data=percent)))
    share = 1.0 if percent is None else percent / 100
    robot.until(lambda: action._speed.share() == share)
    before = len(robot.trajectories)
    robot.until(lambda: len(robot.trajectories) >= before + 3)
    stamps = [nanoseconds(sent.header.stamp) for sent in robot.trajectories[before + 1 :]]
    assert all(bool(stamp) == is_stamped for stamp in stamps)
