"""What a robot sees and feels, as messages, for an engine elsewhere.

Knows topics and stamps. Pixels are not looked at: the fleet does that.
"""

from __future__ import annotations

import time
from functools import partial

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.pipeline import ObservationParams
from embodied_kv.nodes.observation.synchronizer import SyncedMoment, Synchronizer


class ObservationBuffer:
    """A node's newest moment; `views` are those that it has a camera for."""

    def __init__(self, node: SuiteNode) -> None:
        params = node.params.read(ObservationParams)
        self._node, self.views = node, params.views
        self._timeout = params.camera_timeout
        self._sync = Synchronizer(params.views, params.sync_tolerance, params.camera_timeout)
        self._newest: SyncedMoment | None = None
        self._told = ''
        self.joints: JointState | None = None  # the newest
        for view, topic in zip(params.views, params.image_topics, strict=True):
            node.subscribe(Image, topic, partial(self._on_image, view), qos.SENSOR)
        node.subscribe(JointState, 'joint_states', self._on_joints, qos.JOINTS)
        node.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION, always=True)

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        self._sync.restart(time.monotonic())
        self._newest = None

    @property
    def instruction(self) -> str:
        """What to do; '' if nobody has said."""
        return self._told or self._node.params.read(ObservationParams).instruction.strip()

    def tell(self, instruction: str) -> None:
        """From now on the robot is to do this; '' for what the parameter says."""
        self._told = instruction

    @property
    def waits(self) -> str:
        """Why there is no moment."""
        return self._sync.waits if self.instruction else 'no instruction yet'

    def newest(self, now: float) -> SyncedMoment | None:
        """The newest moment, its images and joints as messages; None if the robot sees nothing."""
        self._poll(now)
        if self._newest is None or now - self._newest.received > self._timeout:
            return None
        return self._newest

    def observed(self, moment: SyncedMoment) -> float:
        """When that was, s on the steady clock; when it was received, if ROS time is simulated."""
        clock = self._node.get_clock()
        if clock.ros_time_is_active:
            return moment.received
        age = (clock.now().nanoseconds - moment.stamp) / 1e9
        return min(time.monotonic() - age, moment.received)

    def _poll(self, now: float) -> None:
        """Keep the newest moment that is whole, however far the next one has arrived."""
        self._newest = self._sync.newest(now) or self._newest

    def _on_image(self, view: str, message: Image) -> None:
        try:
            conversions.check_image(message)
        except conversions.Refused as error:
            self._node.warn_throttled(f'image of {view}', f'image of view {view} refused: {error}')
            return
        now = time.monotonic()
        self._sync.image(view, self._stamp(message), now, message)
        self._poll(now)

    def _on_joints(self, message: JointState) -> None:
        self.joints = message
        self._sync.joints(self._stamp(message), time.monotonic(), message)

    def _on_instruction(self, message: String) -> None:
        if message.data.strip():
            self.tell(message.data)
        else:
            self._node.warn_throttled('empty instruction', 'an empty instruction is none')

    def _stamp(self, message: Image | JointState) -> int:
        return (
            conversions.nanoseconds(message.header.stamp)
            or self._node.get_clock().now().nanoseconds
        )
