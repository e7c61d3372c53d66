"""The joint states of a robot, as its drivers publish them.

Knows topics and messages; what they say together, `joint_merger` does. An executor of rclpy
spends far longer on waking up for a message than on taking it, so messages wait with the
middleware until somebody asks for a state, and it wakes up for those alone that are awaited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
from geometry_msgs.msg import PoseStamped
from numpy.typing import NDArray
from rclpy.callback_groups import CallbackGroup
from sensor_msgs.msg import JointState

from embodied_kv.control.plausibility import Bounds
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.publishers import publishers
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.description import JointInput
from embodied_kv.nodes.observation.joint_merger import EPOCH, JointMerger, JointSample
from embodied_kv.robots.channels import JOINT_STATE, POSE, pose_values

AGES = 50  # messages of a topic whose age at receipt is remembered
EARLY, UNDER_WAY = -5_000_000, 50_000_000  # ns: ages at receipt that mean one clock


@dataclass(frozen=True)
class Reader:
    """How a message tells numbers. read: names, positions and velocities of a message."""

    kind: type
    read: Callable[[object], tuple[Sequence[str], Sequence[float], Sequence[float]]]


READERS = {
    JOINT_STATE: Reader(JointState, lambda m: (m.name, m.position, m.velocity)),
    POSE: Reader(PoseStamped, pose_values),
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
    """Subscribe to the joint states of a node, until its cleanup. Thread-safe.

    Args:
        node: The node that subscribes.
        inputs: Topics, and the joints that are taken from each.
        max_age: Largest time (s) between a state and each of its samples.
        bounds: Limits by joint. Other joints are checked for finite positions only.
        heard: Takes the topic of each message.
        arrived: The executor calls it after a message that was awaited.
        age_name: Name of the parameter that sets `max_age`, for messages.
    """

    def __init__(
        self,
        node: SuiteNode,
        inputs: Sequence[JointInput],
        max_age: float,
        bounds: Mapping[str, Bounds],
        heard: Callable[[str], None] = lambda topic: None,
        arrived: Callable[[], None] = lambda: None,
        age_name: str = 'max_state_age',
    ) -> None:
        self._node, self._heard, self._arrived = node, heard, arrived
        self._clock = WorldClock(node.get_clock())
        self._merger = JointMerger(inputs, max_age, bounds, partial(publishers, node), age_name)
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
        self._ages = {joint.topic: deque[int](maxlen=AGES) for joint in inputs}  # ns at receipt

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

    def known(self, stamp: int) -> JointSample:
        """Return what is known of the state of a moment; unknown joints are NaN."""
        self.collect()
        return self._merger.known(stamp)

    def problem(self, stamp: int) -> str:
        """Return why the state of a moment is not known as a whole; '' if it is."""
        self.collect()
        return self._merger.problem(stamp)

    def clocks_agree(self) -> bool:
        """Return whether the stamps of all drivers are of this machine's clock.

        The youngest of the last messages of each topic decides: it was hardly under way.
        """
        youngest = [min(ages) if len(ages) >= AGES // 2 else None for ages in self._ages.values()]
        return all(age is not None and EARLY <= age <= UNDER_WAY for age in youngest)

    def wrap(self) -> None:
        """Bring continuous joints into (-pi, pi], from where they are continuous again."""
        self._merger.wrap()

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
        stamp, now = conversions.nanoseconds(message.header.stamp), None
        if self._clock.is_simulated:  # Messages may have waited, and `received` is system time.
            received, now = None, self._clock.stamp
            if stamp and abs(stamp - now) > EPOCH:
                received = now
        if stamp:
            self._ages[topic].append((received if now is None else now) - stamp)
        if not stamp:  # Some drivers leave it empty.
            stamp = received if now is None else now
        names, positions, velocities = self._readers[topic].read(message)
        try:
            self._merger.add(topic, stamp, names, positions, velocities, received)
        except ValueError as error:
            self._node.warn_throttled('joint state', f'joint state refused: {error}')
