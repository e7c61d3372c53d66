"""A robot's drivers, as a process of their own: cameras and joint states at their rates.

ROS is imported here and in `listener`: what is measured is the real input side of a node, and
nothing of this scaffolding is part of the product. `... robot NAMESPACE RIG` runs until it is
ended.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from array import array
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState

from benchmarks.inputs.rigs import ARM, HAND, HEIGHT, TOPICS, WIDTH, Camera, Rig
from embodied_kv.nodes.common import conversions, qos

Send = Callable[[float], None]  # takes the stamp of the message, s on the ROS clock


def camera(node: Node, described: Camera) -> Send:
    """Return a function that publishes the same image at each call."""
    scene = np.linspace(0, 255, HEIGHT * WIDTH * 3).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)
    if described.compressed:
        data = array('B', cv2.imencode('.jpg', scene)[1].tobytes())
        message = CompressedImage(format='jpeg', data=data)
    else:
        message = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
        message.data = array('B', scene.tobytes())
    return sender(node.create_publisher(type(message), described.topic, qos.SENSOR), message)


def joints(node: Node, topic: str, names: tuple[str, ...]) -> Send:
    """Return a function that publishes the same state at each call."""
    zeros = array('d', [0.0] * len(names))
    message = JointState(name=names, position=zeros, velocity=zeros)
    return sender(node.create_publisher(JointState, topic, qos.JOINTS), message)


def sender(publisher: object, message: Image | CompressedImage | JointState) -> Send:
    def send(moment: float) -> None:
        message.header.stamp = conversions.stamp(round(moment * 1e9))
        publisher.publish(message)

    return send


def events(
    start: float, rate: float, phase: float, latency: float, send: Send
) -> Iterator[tuple[float, int, float, Send]]:
    """Yield (when to send, id, stamp, send) in order, s on the ROS clock."""
    for number in itertools.count():
        moment = start + phase + number / rate
        yield moment + latency, id(send), moment, send


def main() -> None:
    """Publish on absolute deadlines."""
    namespace, rig = sys.argv[1], Rig.from_json(sys.argv[2])
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Node('drivers', namespace=namespace, start_parameter_services=False)
    start = time.time() + 0.1
    rates = rig.joint_rate, rig.joint_rate / 10
    sent = [
        *(events(start, c.rate, c.phase, c.latency, camera(node, c)) for c in rig.cameras),
        *(
            events(start, rate, 0.0, 0.001, joints(node, topic, names))
            for topic, names, rate in zip(TOPICS, (ARM, HAND), rates, strict=True)
            if rate
        ),
    ]
    for due, _, moment, send in heapq.merge(*sent):
        time.sleep(max(0.0, due - time.time()))
        send(moment)


if __name__ == '__main__':
    main()
