"""Read the joint states of a robot from the topics of its drivers.

Messages stay in the middleware until a state is requested. The executor only serves awaited ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

from embodied_kv.control.plausibility import Bounds
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.polling import PolledGroup, queued
from embodied_kv.nodes.common.publishers import publishers
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.joint_merger import (
    EPOCH,
    JointInput,
    JointMerger,
    JointSample,
    UnknownJoint,
)
from embodied_kv.robots.channels import JOINT_STATE, POSE, pose_values
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.sources import limited

AGES = 50  # messages of a topic whose age at receipt is remembered
EARLY, UNDER_WAY = -5_000_000, 50_000_000  # ns: range of ages at receipt if the clocks agree
# By type of message: its class, and a function that returns names, positions and velocities.
READERS = {
    JOINT_STATE: (JointState, lambda m: (m.name, m.position, m.velocity)),
    POSE: (PoseStamped, pose_values),
}


def joint_inputs(contract: Contract) -> tuple[JointInput, ...]:
    """Return the topics of the state and of the measured positions, with their joints."""
    wanted: dict[tuple[str, str], dict[str, None]] = {}  # topic and type -> names
    for source in contract.state:
        names = wanted.setdefault((source.channel.topic, source.channel.type), {})
        names |= dict.fromkeys(limited(selection) for selection in source.select)
    for joint, topic in contract.measured.items():
        wanted.setdefault((topic, JOINT_STATE), {})[joint] = None
    return tuple(JointInput(topic, tuple(names), type) for (topic, type), names in wanted.items())


class JointStates(JointMerger):
    """Subscribe to the joint states of a node, until its cleanup. Thread-safe.

    Args:
        node: The node that subscribes.
        inputs: Topics, and the joints that are taken from each.
        max_age: Largest time (s) between a state and each of its samples.
        bounds: Limits by joint. Other joints are checked for finite positions only.
        received: Takes the topic of each message.
        arrived: Called on the thread of the executor after an awaited message.
        age_name: Name of the parameter that sets `max_age`, for messages.
    """

    def __init__(
        self,
        node: SuiteNode,
        inputs: Sequence[JointInput],
        max_age: float,
        bounds: Mapping[str, Bounds],
        received: Callable[[str], None] = lambda topic: None,
        arrived: Callable[[], None] = lambda: None,
        age_name: str = 'max_joint_state_skew',
    ) -> None:
        super().__init__(inputs, max_age, bounds, partial(publishers, node), age_name)
        self._node, self._received, self._arrived = node, received, arrived
        self._clock = WorldClock(node.get_clock())
        self._order = Lock()  # messages stay in order
        self._group = PolledGroup()
        self._readers = {joint.topic: READERS[joint.type] for joint in inputs}
        self._ages = {joint.topic: deque[int](maxlen=AGES) for joint in inputs}  # ns at receipt
        self._subscriptions = {
            topic: node.subscribe(
                kind,
                topic,
                partial(self._on_awaited, topic),
                qos.JOINT_STATES,
                group=self._group,
            )
            for topic, (kind, _) in self._readers.items()
        }

    def restart(self, turns: bool = False) -> None:
        """Forget everything, see `JointMerger`, and drop the messages that wait."""
        with self._order:
            for subscription in self._subscriptions.values():
                for _ in queued(subscription):
                    pass
            super().restart(turns)

    def _look(self, stamp: int) -> tuple[JointSample, list[UnknownJoint]]:
        self.collect()
        return super()._look(stamp)

    def clocks_agree(self) -> bool:
        """Return whether the stamps of all drivers are of this machine's clock.

        The youngest of the last messages of each topic decides, because its transport was short.
        """
        youngest = [min(ages) if len(ages) >= AGES // 2 else None for ages in self._ages.values()]
        return all(age is not None and EARLY <= age <= UNDER_WAY for age in youngest)

    def awaits(self, stamp: int) -> bool:
        """Return whether a nearer sample is about to arrive; `arrived` is called when it does."""
        self.collect()
        self._group.awake = self.expects(stamp, self._clock.stamp)
        return self._group.awake

    def collect(self) -> None:
        """Take the messages that have arrived, and warn of those that are refused."""
        with self._order:
            for topic, subscription in self._subscriptions.items():
                for message, info in queued(subscription):
                    self._add_message(topic, message, info['received_timestamp'])

    def _on_awaited(self, topic: str, message: object) -> None:
        self._group.awake = False
        with self._order:
            self._add_message(topic, message, self._clock.stamp)
        self._arrived()  # it may request a state, which may await another message

    def _add_message(self, topic: str, message: Any, received: int) -> None:
        self._received(topic)
        stamp, now = conversions.nanoseconds(message.header.stamp), received
        arrived: int | None = received
        if self._clock.is_simulated:  # Messages may have waited, and `received` is system time.
            now = self._clock.stamp
            arrived = now if stamp and abs(stamp - now) > EPOCH else None
        if stamp:
            self._ages[topic].append(now - stamp)
        names, positions, velocities = self._readers[topic][1](message)
        try:  # Some drivers leave the stamp empty.
            self.add(topic, stamp or now, names, positions, velocities, arrived)
        except ValueError as error:
            self._node.warn_throttled('joint state', f'joint state refused: {error}')
