"""A second node that publishes commands for an arm is named in the log and in the diagnostics."""

import subprocess
import sys

import pytest

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.lifecycle_node import WARN

PUBLISH = """
import sys
import rclpy
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.common import qos
from trajectory_msgs.msg import JointTrajectory

KINDS = {'action_chunk': ActionChunk, 'joint_trajectory': JointTrajectory}
namespace, topic = sys.argv[1:]
rclpy.init()
node = rclpy.create_node('left_running', namespace=namespace)
node.create_publisher(KINDS[topic], topic, qos.action(1.0))
sys.stdin.read()
node.destroy_node()
rclpy.shutdown()
"""


class LeftRunning:
    """A node of another process that publishes on a topic of a robot until `leave`."""

    def __init__(self, namespace, topic):
        command = [sys.executable, '-c', PUBLISH, namespace, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def leave(self):
        self._process.stdin.close()
        assert self._process.wait(60) == 0


@pytest.mark.parametrize('topic', ['action_chunk', 'joint_trajectory'])
def test_both_nodes_are_named_until_one_leaves(robot, topic, capfd):
    node = robot.up(Action)
    watched = f'{robot.namespace}/{topic}'

    def told():
        return node.report()[2].get(f'publishers of {watched}', '')

    robot.until(lambda: node._single._before is not None)
    assert not told()
    second = LeftRunning(robot.namespace, topic)
    robot.until(told)
    assert told() == f'{robot.namespace}/action, {robot.namespace}/left_running'
    assert node.report()[0] >= WARN
    line = f'{watched} must have one publisher (got several publishers: {told()}); stop all nodes'
    assert line in capfd.readouterr().err
    second.leave()
    robot.until(lambda: not told())
