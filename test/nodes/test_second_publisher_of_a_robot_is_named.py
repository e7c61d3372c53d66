"""A second publisher in a robot's namespace is named in the log and in the diagnostics."""

import subprocess
import sys

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from fleet_suite import Fleets

from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.nodes.fleet.messages import ANSWER, FINISHED, REQUEST

PUBLISH = """
import sys
import rclpy
from std_msgs.msg import String
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, FINISHED, REQUEST, REQUESTS

TOPICS = {
    REQUEST: (FleetRequest, REQUESTS),
    FINISHED: (String, REQUESTS),
    ANSWER: (FleetAnswer, ANSWERS),
}
namespace, topic = sys.argv[1:]
rclpy.init()
node = rclpy.create_node('left_running', namespace=namespace)
kind, profile = TOPICS[topic]
node.create_publisher(kind, topic, profile)
sys.stdin.read()
node.destroy_node()
rclpy.shutdown()
"""


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


class LeftRunning:
    """A node of another process that publishes on one topic of a robot until `leave`."""

    def __init__(self, namespace, topic):
        command = [sys.executable, '-c', PUBLISH, namespace, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def leave(self):
        self._process.stdin.close()
        assert self._process.wait(60) == 0


@pytest.mark.parametrize('topic', [REQUEST, FINISHED])
def test_fleet_names_both_publishers_until_one_leaves(fleet, topic, capfd):
    node = fleet.up()
    robot, other = fleet.join(), fleet.join(seed=1)
    name, heard = node.get_fully_qualified_name().lstrip('/'), {}

    def hear(message):
        heard.update({status.name: status for status in message.status})

    robot.node.create_subscription(DiagnosticArray, '/diagnostics', hear, qos.STATUS)
    fleet.until(lambda: name in heard and heard[name].level == OK)
    watched = f'{robot.namespace}/{topic}'
    second = LeftRunning(robot.namespace, topic)
    fleet.until(lambda: heard[name].level == WARN)
    assert heard[name].message == f'several publishers of {watched}'
    names = f'{robot.namespace}/left_running, {robot.namespace}/robot'
    told = {v.key: v.value for v in heard[name].values if v.key.startswith('publishers of')}
    assert told == {f'publishers of {watched}': names}
    second.leave()
    fleet.until(lambda: heard[name].level == OK)
    line = f'{watched} must have one publisher (got several publishers: {names}); stop all nodes'
    log = ''

    def is_said():
        nonlocal log
        log += capfd.readouterr().err
        return line in log and f'{watched} no longer has several publishers' in log

    fleet.until(is_said)  # later, if the node was not named at first: the rate of lines is bounded
    assert log.count(line) == 1
    robot.ask()
    other.ask()
    fleet.until(lambda: robot.got() and other.got())


@pytest.mark.parametrize('topic', [REQUEST, FINISHED, ANSWER])
def test_client_names_a_second_client_and_a_second_fleet(fleet, topic, capfd):
    fleet.up()
    robot = fleet.act()
    client, watched = robot.suite[0], f'{robot.namespace}/{topic}'
    fleet.live(lambda: client.count_publishers(watched), show=False)

    def told():
        return client.report()[2].get(f'publishers of {watched}', '')

    assert not told()
    second = LeftRunning(robot.namespace, topic)
    fleet.live(lambda: f'{robot.namespace}/left_running' in told(), show=False)
    line = f'{watched} must have one publisher (got several publishers: {told()}); stop all'
    assert line in capfd.readouterr().err
    second.leave()
    fleet.live(lambda: not told(), show=False)
