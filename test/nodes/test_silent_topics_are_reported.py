"""A topic without messages is reported with its name, type, and what ROS knows about it."""

import subprocess
import sys

import pytest
from observation_suite import compressed, description, joints, observer, view

from embodied_kv.nodes.observation import inputs
from embodied_kv.nodes.observation.joint_merger import JointInput


@pytest.fixture
def node(robot):
    """Start a node with two cameras, one of them compressed, and joints of two topics."""
    views = view('front'), view('wrist', compressed=True)
    hand = JointInput('gripper/joint_states', ('finger',))
    arm = JointInput('joint_states', ('hip',))
    return robot.up(observer(description(*views, joints=(arm, hand))))


def said(robot, node, capfd, monkeypatch):
    """Return the report of each topic after the time limit."""
    capfd.readouterr()
    node.inputs._check_topics()
    assert 'no message received' not in capfd.readouterr().err  # too early
    monkeypatch.setattr(inputs, 'SILENCE', 0.0)
    node.inputs._check_topics()
    lines = [x for x in capfd.readouterr().err.split('\n') if 'no message received on' in x]
    start = f'no message received on {robot.namespace}/'
    return dict(line.split(start)[1].split(' for 0 s: ') for line in lines)


PUBLISH = """
import sys
import rclpy
from sensor_msgs.msg import Image
from embodied_kv.nodes.common import qos

rclpy.init()
node = rclpy.create_node('stranger', namespace=sys.argv[1])
node.create_publisher(Image, 'camera/wrist/compressed', qos.SENSOR)
sys.stdin.read()
node.destroy_node()
rclpy.shutdown()
"""


@pytest.fixture
def stranger(robot):
    """Start a process that publishes images where compressed ones are expected."""
    words = [sys.executable, '-c', PUBLISH, robot.namespace]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    assert process.wait(60) == 0


def test_of_each_topic_the_reason_is_said(robot, node, stranger, capfd, monkeypatch):
    for topic in ('camera/wrist/compressed', 'camera/front/image', 'joint_states'):
        robot.until(lambda t=topic: node.count_publishers(t), show=False)
    silent = 'its publisher sends no messages'
    assert said(robot, node, capfd, monkeypatch) == {
        'camera/front/image (sensor_msgs/msg/Image)': silent,
        'camera/wrist/compressed (sensor_msgs/msg/CompressedImage)': (
            'the type of its publisher is sensor_msgs/msg/Image'
        ),
        'joint_states (sensor_msgs/msg/JointState)': silent,
        'gripper/joint_states (sensor_msgs/msg/JointState)': 'the topic has no publisher',
    }


def test_it_is_said_once(robot, node, capfd, monkeypatch):
    assert said(robot, node, capfd, monkeypatch)
    node.inputs._check_topics()
    assert 'no message received' not in capfd.readouterr().err


def test_nothing_is_said_of_topics_that_were_heard(robot, node, capfd, monkeypatch):
    hand = joints(robot, 'gripper/joint_states')
    wrist = compressed(robot, 'wrist')
    silent = node.inputs._monitor._silent

    def show():
        hand(finger=0.1)
        wrist(b'')
        node.inputs.joints.collect()
        return not silent

    robot.until(show, views=('front',))
    assert said(robot, node, capfd, monkeypatch) == {}


def test_a_simulated_clock_that_nobody_publishes_is_said(robot, capfd, monkeypatch):
    node = robot.up(observer(description(joints=())), use_sim_time=True)
    robot.until(lambda: not node.inputs._monitor._silent - {'/clock'}, views=('front',))
    monkeypatch.setattr(inputs, 'SILENCE', 0.0)
    node.inputs._check_topics()
    said = capfd.readouterr().err
    assert 'no message received on /clock (rosgraph_msgs/msg/Clock)' in said
    assert not node.inputs.moments
