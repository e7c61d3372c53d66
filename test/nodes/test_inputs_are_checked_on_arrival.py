"""A robot without a model refuses invalid input on arrival, as perception does."""

import numpy as np
import pytest
from remote_suite import NOWHERE
from std_msgs.msg import String

from embodied_kv.nodes.remote.action import RemoteAction


@pytest.fixture
def client(robot):
    node = robot.up(RemoteAction, server__address=NOWHERE)
    robot.until(lambda: node._frames.newest() is not None)
    return node


@pytest.mark.parametrize(
    'kind, frame',
    [
        ('joint state', {'positions': np.nan}),
        ('image of front', {'encoding': '16UC1'}),
        ('stamps set back', {'stamp': 10**9}),
        ('old stamps', {'stamp': 10**9}),
    ],
)
def test_it_is_counted_by_its_kind_and_the_robot_goes_on(robot, client, kind, frame):
    robot.until(lambda: client.warning_counts[kind], **frame)
    before = client._frames.newest().stamp
    robot.until(lambda: client._frames.newest().stamp > before)


def test_joints_that_are_refused_are_not_sent(robot, client):
    robot.until(lambda: client.warning_counts['joint state'], positions=np.nan)
    moment = client._frames.newest()
    assert client._frames.state(moment) == pytest.approx([*[0.1] * 6, 0.04])


def test_an_empty_instruction_ends_the_one_before(robot, client):
    robot.instruction.publish(String(data=' '))
    robot.until(lambda: not client._frames.instruction)
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: client._frames.instruction == 'push')
