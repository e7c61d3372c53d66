"""The suite with the files of examples/rrbot moves simulated joints, as its README describes."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import SetBool

from benchmarks.safety.plant import Joints, Plant, TrajectoryController
from benchmarks.watchdog.stand_ins import Process
from embodied_kv.nodes.common import qos

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / 'examples' / 'rrbot'
START, JOINTS = [0.3, -0.3], ['joint1', 'joint2']  # as in rrbot.urdf
HALT = 120.0  # s for a process to start, and for an answer


@pytest.fixture
def arm(ros):
    """Yield joints with a model of a joint_trajectory_controller."""
    node = rclpy.create_node('arm', namespace=f'/rrbot_{os.getpid()}')
    topic = 'joint_trajectory_controller/joint_trajectory'
    joints = Joints(
        node, 'joint_states', JOINTS, START, TrajectoryController(node, topic, JOINTS, START)
    )
    plant = Plant(node, [joints])
    yield joints
    plant.close()


@pytest.fixture
def suite(ros, monkeypatch):
    monkeypatch.chdir(ROOT)  # paths in the file are relative to it
    words = ['--params-file', str(EXAMPLE / 'robot.yaml'), '-r', f'__ns:=/rrbot_{os.getpid()}']
    process = Process('embodied_kv.nodes.robot', '--ros-args', *words)
    try:
        yield process
        process.signal(signal.SIGINT)
        assert process.wait(HALT) == 0
    finally:
        process.close()


@pytest.mark.slow
def test_the_example_moves_its_arm(arm, suite):
    node = rclpy.create_node('operator', namespace=f'/rrbot_{os.getpid()}')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    picture = Image(height=240, width=320, encoding='bgr8', step=960, data=bytes(960 * 240))
    camera = node.create_publisher(Image, 'camera/image_raw', 10)

    def publish():
        picture.header.stamp = node.get_clock().now().to_msg()
        camera.publish(picture)

    node.create_timer(0.05, publish)
    urdf = node.create_publisher(String, 'robot_description', qos.STATUS)
    urdf.publish(String(data=(EXAMPLE / 'rrbot.urdf').read_text()))
    instruction = node.create_publisher(String, 'instruction', qos.INSTRUCTION)
    client = node.create_client(SetBool, 'control/arm')

    def until(happened):
        end = time.monotonic() + HALT
        while not happened():
            assert time.monotonic() < end, suite.text
            executor.spin_once(timeout_sec=0.05)

    def armed():
        answer = client.call_async(SetBool.Request(data=True))
        until(answer.done)
        return answer.result().success

    until(client.service_is_ready)
    until(armed)
    until(lambda: instruction.get_subscription_count() >= 3)
    instruction.publish(String(data='move'))
    until(lambda: np.abs(arm.position - START).max() > 0.1)
    assert arm.controller.rejected == []
    executor.shutdown()
    node.destroy_node()
