"""What a robot of a fleet could not send is refused where it arrives, as perception refuses it."""

import numpy as np
import pytest
from std_msgs.msg import String

from embodied_kv.msg import FleetRequest
from embodied_kv.nodes.fleet.client_node import FleetClient
from embodied_kv.nodes.fleet.messages import REQUEST, REQUESTS


@pytest.fixture
def client(robot):
    """The node, without an engine; `robot.handles` are its requests."""
    robot.node.create_subscription(FleetRequest, REQUEST, robot.handles.append, REQUESTS)
    node = robot.up(FleetClient)
    robot.until(lambda: robot.handles)
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
    robot.more(robot.handles)


def test_joints_that_are_refused_are_not_sent(robot, client):
    robot.until(lambda: client.warning_counts['joint state'], positions=np.nan)
    (seen,) = {tuple(request.observation.joints.position) for request in robot.handles}
    assert seen == pytest.approx([*[0.1] * 6, 0.04])


def test_after_an_empty_instruction_nothing_is_asked_for(robot, client):
    robot.instruction.publish(String(data=' '))
    robot.until(lambda: not client._observations.instruction)
    robot.spin(0.2)
    before = len(robot.handles)
    robot.until(lambda: client._observations.newest() is not None)
    robot.spin(0.5)
    assert len(robot.handles) == before
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: robot.handles[-1].observation.instruction == 'push')
