"""The input side of a node in a process of its own, and its cost (see `robot`).

`... listener NAMESPACE RIG WAY RATE SECONDS` prints one JSON line. Ways: 'asked', as the product
takes joint states; 'called', a callback for each of them, merged in the same way; 'none' takes
none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import rclpy
import torch
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState

from benchmarks.inputs.rigs import ARM, HAND, TOPICS, Rig
from embodied_kv.config import TINY
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import SUCCESS, SuiteNode
from embodied_kv.nodes.observation.clock import FrameThrottle
from embodied_kv.nodes.observation.inputs import ObservationInputs, ObservationParams
from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger
from embodied_kv.robots.channels import COMPRESSED, IMAGE
from embodied_kv.robots.sources import View
from embodied_kv.serving.remote_policy.remote_part import RemoteHost

WARMUP = 2.0  # s after the first frame that are not measured
PATIENCE = 20.0  # s for the first frame
JOINTS = tuple(JointInput(*pair) for pair in zip(TOPICS, (ARM, HAND), strict=True))


class Frames(ObservationInputs):
    """Takes frames as perception does, up to their pixels.

    images: how many arrived. ages: of each frame, s. apart: s between the images of each frame.
    """

    def __init__(
        self, node: SuiteNode, views: dict[str, View], joints: Sequence[JointInput], rate: float
    ) -> None:
        super().__init__(node, views, joints)
        self._pace = FrameThrottle(1 / rate)
        self.images = 0
        self.ages: list[float] = []
        self.apart: list[float] = []

    def on_image(self) -> None:
        self.images += 1
        self.on_joints()

    def on_joints(self) -> None:
        now = self.now()
        if not self._pace.is_due(now):
            return
        moment = self._sync.newest(now)
        if moment is None or self.pixels(moment) is None:
            return
        self._pace.record_frame(now)
        stamps = [conversions.nanoseconds(m.header.stamp) for _, m in self.messages(moment)]
        self.ages.append(now - moment.taken)
        self.apart.append((max(stamps) - min(stamps)) / 1e9)


class Listener(SuiteNode):
    """A node without an engine that observes the rig, whatever robot its contract has.

    heard: joint states that arrived by a callback.
    """

    on_engine = False

    def __init__(self, rig: Rig, way: str, rate: float, **arguments: object) -> None:
        super().__init__('listener', ObservationParams, **arguments)
        self._rig, self._way, self._rate = rig, way, rate
        self.heard = 0

    def find_host(self) -> RemoteHost:
        return RemoteHost(self.embodiment.adapted(TINY))

    def setup(self) -> None:
        channels = {
            c.name: {'topic': c.topic, 'type': COMPRESSED if c.compressed else IMAGE}
            for c in self._rig.cameras
        }
        views = {name: View(channel=channel) for name, channel in channels.items()}
        joints = JOINTS if self._way == 'asked' else ()
        self.frames = Frames(self, views, joints, self._rate)
        if self._way == 'called':
            self._merger = JointMerger(JOINTS, 0.2)
            for topic in TOPICS:
                self.subscribe(JointState, topic, partial(self._hear, topic), qos.JOINTS)

    def start(self) -> None:
        self.frames.restart()

    def _hear(self, topic: str, message: JointState) -> None:
        self.heard += 1
        stamp = conversions.nanoseconds(message.header.stamp)
        self._merger.add(topic, stamp, message.name, message.position, message.velocity)


def measured(node: Listener, seconds: float) -> dict[str, float]:
    """Measure the node for `seconds`.

    cpu: share of a core. images, frames, heard: a second. age, apart: means, ms.
    """
    executor = SingleThreadedExecutor()
    executor.add_node(node)

    def spin(until: float) -> None:
        while time.monotonic() < until:
            executor.spin_once(timeout_sec=0.1)

    deadline = time.monotonic() + PATIENCE
    while not node.frames.ages and time.monotonic() < deadline:
        executor.spin_once(timeout_sec=0.1)
    spin(time.monotonic() + WARMUP)
    before, heard, images = len(node.frames.ages), node.heard, node.frames.images
    began, cpu = time.monotonic(), time.process_time()
    spin(began + seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - began
    ages, apart = node.frames.ages[before:], node.frames.apart[before:]
    return dict(
        images=(node.frames.images - images) / wall,
        frames=len(ages) / wall,
        cpu=cpu / wall,
        heard=(node.heard - heard) / wall,
        age_ms=fmean(ages) * 1e3 if ages else None,
        apart_ms=fmean(apart) * 1e3 if apart else None,
        warnings=sum(node.warning_counts.values()),
    )


def main() -> None:
    """Measure, and print what was found."""
    namespace, rig, way, rate, seconds = sys.argv[1:]
    torch.set_num_threads(1)
    sys.setswitchinterval(executable.SWITCH)
    rclpy.init()
    node = Listener(
        Rig.from_json(rig),
        way,
        float(rate),
        namespace=namespace,
        parameter_overrides=[
            Parameter('contract', value='tabletop'),
            Parameter('instruction', value='look'),
        ],
    )
    assert node.trigger_configure() == node.trigger_activate() == SUCCESS
    print(json.dumps(measured(node, float(seconds))))
    node.end()
    rclpy.try_shutdown()


if __name__ == '__main__':
    main()
