"""A robot's cameras, joints and instruction, as they arrive at a node.

Knows topics, stamps and clocks. Messages are checked on arrival and stored as they are; what
belongs together, `synchronizer` decides; what becomes of it, the subclass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.observation.synchronizer import SyncedMoment, Synchronizer
from embodied_kv.text import shown

STALE = 1.0  # s; no camera is so slow, and no pause between frames so long


@dataclass(frozen=True)
class ObservationParams:
    """Where observations come from."""

    views: tuple[str, ...] = param(
        ('front', 'wrist'), "Views of the model that have a camera; the model's others stay empty"
    )
    image_topics: tuple[str, ...] = param(
        ('camera/front/image', 'camera/wrist/image'), 'sensor_msgs/Image of each of the views'
    )
    instruction: str = param(
        'pick up the red cube',
        "What to do until an `instruction` arrives; '' waits for one",
        'live',
    )
    sync_tolerance: float = param(
        0.03,
        'Stamps of one observation lie at most so far apart, s',
        range=(0.0, 10.0),
        old='tolerance',
    )
    camera_timeout: float = param(
        0.5, 'Without an image for so long, a view counts as missing, s', range=(0.01, 60.0)
    )

    def __post_init__(self) -> None:
        if len(self.views) != len(self.image_topics):
            raise ValueError(
                f'parameter image_topics names {len(self.image_topics)} topics for '
                f'{len(self.views)} views'
            )
        if not self.views:
            raise ValueError('parameter views names none: a frame needs at least one camera')
        if len(set(self.views)) < len(self.views):
            raise ValueError(f'parameter views names a view twice: {", ".join(self.views)}')


class ObservationInputs:
    """Subscribes for a node and keeps what belongs together; subclasses fill in what follows.

    views: those that have a camera. joints: the newest message of them, None before the first.
    """

    def __init__(self, node: SuiteNode) -> None:
        params = node.params.read(ObservationParams)
        self.views, self.timeout = params.views, params.camera_timeout
        self.joints: JointState | None = None
        self._node = node
        self._sync = Synchronizer(params.views, params.sync_tolerance, params.camera_timeout)
        self._told = ''  # the instruction that was sent, '' before the first
        for view, topic in zip(params.views, params.image_topics, strict=True):
            node.subscribe(Image, topic, partial(self._on_image, view), qos.SENSOR)
        node.subscribe(JointState, 'joint_states', self._on_joints, qos.JOINTS)
        node.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION, always=True)

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        self._sync.restart(time.monotonic())

    @property
    def instruction(self) -> str:
        """What the robot is to do now; '' if nobody has said."""
        return self._told or self._node.params.read(ObservationParams).instruction.strip()

    def tell(self, instruction: str) -> None:
        """From now on the robot is to do this; '' for what the parameter says."""
        self._told = instruction
        self._node.log_info('instruction', f"instruction: '{shown(self.instruction)}'")

    @property
    def waits(self) -> str:
        """Why there was no new observation, '' if there was."""
        return self._sync.waits if self.instruction else 'no instruction yet'

    def observed(self, moment: SyncedMoment) -> float:
        """When that was, s on the steady clock; under `use_sim_time`, when it was received.

        Future stamps (the clocks of two machines differ) are clamped to reception time.
        """
        clock = self._node.get_clock()
        if clock.ros_time_is_active:
            return moment.received
        age = (clock.now().nanoseconds - moment.stamp) / 1e9
        if age > STALE:
            self._node.warn_throttled(
                'old stamps',
                f'images are {age:.1f} s old: no action on them can be in time. Check the clocks '
                'of the cameras; set use_sim_time for a recording',
            )
        return min(time.monotonic() - age, moment.received)

    # ------------------------------------------------------------------ what subclasses fill in

    def on_image(self) -> None:
        """An image has been stored."""

    def on_joints(self) -> None:
        """Joint positions have been stored."""

    # ------------------------------------------------------------------ what arrives

    def _on_image(self, view: str, message: Image) -> None:
        try:
            conversions.check_image(message)
        except conversions.Refused as error:
            self._node.warn_throttled(f'image of {view}', f'image of view {view} refused: {error}')
            return
        stamp = self._stamp(message)
        if not self._sync.image(view, stamp, time.monotonic(), message):
            self._node.warn_throttled(
                'stamps set back',
                f'stamps of view {view} jumped back to {stamp / 1e9:.3f} s: starting anew',
            )
        self.on_image()

    def _on_joints(self, message: JointState) -> None:
        self.joints, self.joints_received = message, time.monotonic()
        try:
            conversions.positions(message, self._node.suite.joint_names)
        except conversions.Refused as error:
            self._node.warn_throttled('joint state', f'joint state refused: {error}')
            return
        self._sync.joints(self._stamp(message), time.monotonic(), message)
        self.on_joints()

    def _on_instruction(self, message: String) -> None:
        if message.data.strip():
            self.tell(message.data)
            return
        self._node.warn_throttled(
            'empty instruction',
            f"an empty instruction is none: '{shown(self.instruction)}' stays in force; to stop "
            'the robot, deactivate its action node',
        )

    def _stamp(self, message: Image | JointState) -> int:
        """ns on the ROS clock; of reception, where a driver leaves its stamp empty."""
        return (
            conversions.nanoseconds(message.header.stamp)
            or self._node.get_clock().now().nanoseconds
        )
