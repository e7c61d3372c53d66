"""The joint states of a robot, as its drivers publish them.

Knows topics and messages; what they say together, `joint_merger` does. An executor of rclpy
spends far longer on waking up for a message than on taking it, so messages wait with the
middleware until somebody asks for a state, and it wakes up for those alone that are awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
from geometry_msgs.msg import PoseStamped
from numpy.typing import NDArray
from rclpy.callback_groups import CallbackGroup
from sensor_msgs.msg import JointState

from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.description import JointInput
from embodied_kv.nodes.observation.joint_merger import JointMerger, JointSample
from embodied_kv.robots.channels import JOINT_STATE, POSE
from embodied_kv.robots.poses import of_pose


@dataclass(frozen=True)
class Reader:
    """How a message tells numbers. read: names, positions and velocities of a message."""

    kind: type
    read: Callable[[object], tuple[Sequence[str], Sequence[float], Sequence[float]]]


READERS = {
    JOINT_STATE: Reader(JointState, lambda m: (m.name, m.position, m.velocity)),
    POSE: Reader(PoseStamped, of_pose),
}


class _Drowsy(CallbackGroup):
    """Of subscriptions that the executor takes from while they are `awake`."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = False

    def can_execute(self, entity: object) -> bool:
        return self.awake

    def beginning_execution(self, entity: object) -> bool:
        return self.awake

    def ending_execution(self, entity: object) -> None:
        """The next one may begin."""


class JointStates:
    """Subscribes for a node, until its cleanup. From any thread.

    inputs: topics, and the joints that are taken from each. max_age: s that no joint of a state
    may lie from the moment of the state. heard: takes the topic of each message. arrived: is
    called, by the executor, after a message that was awaited.
    """

    def __init__(
        self,
        node: SuiteNode,
        inputs: Sequence[JointInput],
        max_age: float,
        heard: Callable[[str], None] = lambda topic: None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self._node, self._heard, self._arrived = node, heard, arrived
        self._clock = WorldClock(node.get_clock())
        self._merger = JointMerger(inputs, max_age)
        self._lock = Lock()  # messages stay in order
        self._group = _Drowsy()
        self._subscriptions = {
            joint.topic: node.subscribe(
                READERS[joint.type].kind,
                joint.topic,
                partial(self._on_awaited, joint.topic),
                qos.JOINT_STATES,
                group=self._group,
            )
            for joint in inputs
        }
        self._readers = {joint.topic: READERS[joint.type] for joint in inputs}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the joints, in the order of a state."""
        return self._merger.names

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        with self._lock:
            for topic in self._subscriptions:
                self._take(topic, lambda *_: None)
            self._merger.restart()

    def at(self, stamp: int) -> JointSample:
        """The state of this moment, ns on the ROS clock; as of `JointMerger.at`."""
        self.collect()
        return self._merger.at(stamp)

    def rates(self, stamp: int, over: int) -> NDArray[np.float64]:
        """How fast the joints move at this moment; as of `JointMerger.rates`."""
        return self._merger.rates(stamp, over)

    def awaits(self, stamp: int) -> bool:
        """Whether a nearer state of this moment is about to arrive; then `arrived` is called."""
        self.collect()
        self._group.awake = self._merger.expects(stamp, self._clock.stamp)
        return self._group.awake

    def collect(self) -> None:
        """Take what has arrived, and warn of what cannot be used."""
        with self._lock:
            for topic in self._subscriptions:
                self._take(topic, self._add)

    def drop_after(self, stamp: int) -> None:
        """Time was set back."""
        self._merger.drop_after(stamp)

    def _on_awaited(self, topic: str, message: object) -> None:
        self._group.awake = False
        with self._lock:
            self._add(topic, message, self._clock.stamp)
        self._arrived()  # and who asks then may await another one

    def _take(self, topic: str, use: Callable[[str, object, int], None]) -> None:
        """As an executor would, but all that has arrived."""
        handle = self._subscriptions[topic].handle
        with handle:
            for _ in range(qos.JOINT_STATES.depth):
                taken = handle.take_message(self._readers[topic].kind, False)
                if taken is None:
                    return
                message, info = taken
                use(topic, message, info['received_timestamp'])

    def _add(self, topic: str, message: object, received: int) -> None:
        self._heard(topic)
        stamp = conversions.nanoseconds(message.header.stamp)
        if not stamp:  # a driver leaves it empty
            stamp = self._clock.stamp if self._clock.is_simulated else received
        try:
            self._merger.add(topic, stamp, *self._readers[topic].read(message))
        except ValueError as error:
            self._node.warn_throttled('joint state', f'joint state refused: {error}')
