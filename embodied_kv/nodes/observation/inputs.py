"""Receive the images, the joint states and the instruction of a robot.

Messages are checked on arrival. `synchronizer` combines those that belong together. Moments are s
on the world's clock, see `clock`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from embodied_kv.control.limits import LimitError
from embodied_kv.control.limits_from_contract import limits_from_contract, linear_joints
from embodied_kv.control.plausibility import Bounds, bounds_of
from embodied_kv.nodes.common import conversions, images, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.common.publishers import type_name
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.joint_merger import JointInput
from embodied_kv.nodes.observation.joint_states import READERS, JointStates, joint_inputs
from embodied_kv.nodes.observation.synchronizer import Stamped, SyncedMoment, Synchronizer
from embodied_kv.robots.channels import COMPRESSED
from embodied_kv.robots.sources import View
from embodied_kv.text import shown

SILENCE = 5.0  # s, steady clock; discovery over a network takes a second or two
AnyImage: TypeAlias = Image | CompressedImage


@dataclass(frozen=True)
class ObservationParams:
    """Parameters of nodes that receive observations."""

    instruction: str = param(
        '',
        'Instruction at the start; empty: none. The newest of a message on `instruction` and a '
        'value set here is in force',
        'live',
    )
    # The image of one of two free-running 30 Hz cameras lies at most 17 ms from the nearest image
    # of the other, and 33 ms from the one before, if the nearest is lost; at 15 Hz: 33 ms. The
    # rest is jitter of the stamps.
    max_image_skew: float = param(
        0.04,
        'Maximum time (s) between the stamps of the images of one observation',
        range=(0.0, 10.0),
        old=('sync_tolerance', 'tolerance'),
    )
    camera_timeout: float = param(
        0.5, 'Time (s) without an image after which a view is missing', range=(0.01, 60.0)
    )
    max_image_age: float = param(
        1.0,
        'Maximum age (s) of an image by its stamp; for a recording set use_sim_time',
        range=(0.01, 1e9),
    )
    # The position of a gripper that publishes ten times a second is known 100 ms late, and its
    # message takes time to arrive.
    max_joint_state_skew: float = param(
        0.2,
        'Maximum time (s) between the stamps of a joint position and of the images',
        range=(0.001, 60.0),
        old=('max_state_age',),
    )


class TopicMonitor:
    """Warns once of each topic without messages, with the cause that the ROS graph shows.

    types: topic -> class of its messages.
    """

    def __init__(self, node: SuiteNode, types: Mapping[str, type]) -> None:
        self._node, self._types = node, dict(types)
        self.restart()

    def restart(self) -> None:
        """Expect messages on all topics from now on."""
        self._began, self._silent = time.monotonic(), set(self._types)

    def received(self, topic: str) -> None:
        """Note that a message has arrived on a topic."""
        self._silent.discard(topic)

    def check(self) -> None:
        """Warn of topics that are silent for `SILENCE`; call this periodically."""
        if time.monotonic() - self._began < SILENCE:
            return
        for topic in sorted(self._silent):
            type_, name = type_name(self._types[topic]), self._node.resolve_topic_name(topic)
            self._node.log_warning(
                f'silent {topic}',
                f'no message received on {name} ({type_}) for {SILENCE:.0f} s: '
                f'{self._reason(name, type_)}',
            )
        self._silent.clear()

    def _reason(self, name: str, type_: str) -> str:
        publishers = self._node.get_publishers_info_by_topic(name)
        types = sorted({publisher.topic_type for publisher in publishers})
        if not publishers:
            return 'the topic has no publisher'
        if type_ in types:
            return 'its publisher sends no messages'
        return f'the type of its publisher is {", ".join(types)}'


class ObservationInputs:
    """Subscribes to the inputs of a node. Subclasses implement `on_image`.

    instruction: the instruction in force; '' for none.

    Args:
        node: The node that subscribes.
        views: The cameras by name.
        joints: The topics of joint states.
        on_instruction: Takes each new instruction, '' for none, on the thread that sets it.
    """

    def __init__(
        self,
        node: SuiteNode,
        views: Mapping[str, View],
        joints: Sequence[JointInput],
        on_instruction: Callable[[str], None] = lambda instruction: None,
    ) -> None:
        params = node.params.read(ObservationParams)
        self.views, self.timeout = views, params.camera_timeout
        self.clock = WorldClock(node.get_clock())
        self.instruction = params.instruction.strip()
        self._node, self._notify = node, on_instruction
        self._max_age, self._latest = params.max_image_age, 0.0
        types = {joint.topic: READERS[joint.type][0] for joint in joints}
        cameras = {
            name: CompressedImage if view.channel.type == COMPRESSED else Image
            for name, view in views.items()
        }
        types |= {view.channel.topic: cameras[name] for name, view in views.items()}
        types |= {'/clock': Clock} if self.clock.is_simulated else {}
        self._monitor = TopicMonitor(node, types)
        self.refusal = ''  # why the newest moment became no frame
        self._is_unpublished = False  # whether it was set while the node was inactive
        self._ahead: dict[str, str] = {}  # by view: why the clock of its camera is wrong
        self._max_ahead = params.max_joint_state_skew / 2
        self.joints = JointStates(
            node,
            joints,
            params.max_joint_state_skew,
            _bounds(node),
            self._monitor.received,
            self.on_joints,
        )
        self._sync = Synchronizer(
            views,
            self.joints,
            params.max_image_skew,
            params.camera_timeout,
            params.max_image_age,
        )
        for name, view in views.items():
            topic, receive = view.channel.topic, partial(self._on_image, name)
            node.subscribe(cameras[name], topic, receive, qos.SENSOR)
        node.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION, always=True)
        self._instructions = node.publisher(String, 'instruction', qos.INSTRUCTION)
        node.params.watch('instruction', self.publish_instruction)
        node.every(1.0, self._check_topics)

    def restart(self) -> None:
        """Forget everything that has arrived."""
        self._latest = self.clock.now()
        self._monitor.restart()
        self.refusal = ''
        self._ahead.clear()
        self.joints.restart()
        self.joints.wrap()
        self._sync.restart(self._latest)

    def publish_instruction(self, instruction: str) -> None:
        """Set the instruction and publish it on its topic."""
        self.set_instruction(instruction)
        self._is_unpublished = not self._node.active
        self._instructions.publish(String(data=self.instruction))

    def put_back(self, instruction: str) -> None:
        """Put the instruction of a capsule in force, unless that in force was cleared since."""
        if self.instruction:
            self.publish_instruction(instruction)

    def publish_missed(self) -> None:
        """Publish an instruction that was set while the node was inactive."""
        if self._is_unpublished and self.instruction:
            self._instructions.publish(String(data=self.instruction))
        self._is_unpublished = False

    def set_instruction(self, instruction: str) -> None:
        """Set the instruction; blank: none."""
        self.instruction = instruction if instruction.strip() else ''
        self.joints.wrap()  # A new episode begins for the policy.
        line = f"'{shown(self.instruction)}'" if self.instruction else 'none: nothing to do'
        self._node.log_info('instruction', f'instruction: {line}')
        self._notify(self.instruction)

    @property
    def waits(self) -> str:
        """Return why there was no new observation; '' if there was one."""
        if not self.instruction:
            return 'no instruction'
        ahead = '; '.join(self._ahead.values())  # the cause of all other problems
        return ahead if ahead and self._sync.waits else self._sync.waits or self.refusal

    def now(self) -> float:
        """Return the time on the world's clock (s); restart if time has begun or was set back."""
        now = self.clock.now()
        if now < self._latest or (now and not self._latest):
            self.restart()
        self._latest = now
        return now

    def pixels(self, moment: SyncedMoment) -> dict[str, NDArray[np.uint8]] | None:
        """Return the present views by name, [height, width, 3] RGB, cropped and rotated.

        Warns, and returns None, if one of them cannot be read.
        """
        self.refusal, pixels = '', {}
        for name, message in self.messages(moment):
            try:
                pixels[name] = self.views[name].framed(images.rgb(message))
            except ValueError as error:
                self.refusal = self._refuse(name, error)
                return None
        return pixels

    def state(self, moment: SyncedMoment) -> NDArray[np.float64] | None:
        """Return the policy's state, float64 [D]; warn, and return None, if a value is missing."""
        names, sample = self.joints.names, moment.state
        try:
            return self._node.embodiment.state.policy(
                dict(zip(names, sample.positions, strict=True)),
                dict(zip(names, sample.velocities, strict=True)),
            )
        except ValueError as error:
            self.refusal = f'no state: {error}'
            self._node.warn_throttled('state', self.refusal)
            return None

    def messages(self, moment: SyncedMoment) -> list[tuple[str, AnyImage]]:
        """Return the names of the present views, and the messages of their cameras."""
        pairs = zip(self.views, moment.images, strict=True)
        return [(name, message) for name, message in pairs if message is not None]

    # ------------------------------------------------------------------ for subclasses

    def on_image(self) -> None:
        """Use the images; called after each one."""

    def on_joints(self) -> None:
        """Use the images; called after a joint state that the newest image has waited for."""
        self.on_image()

    # ------------------------------------------------------------------ arrival

    def _check_topics(self) -> None:
        if self.clock.now():
            self._monitor.received('/clock')
        self.joints.collect()
        self._monitor.check()

    def _on_image(self, name: str, message: AnyImage) -> None:
        topic = self.views[name].channel.topic
        self._monitor.received(topic)
        try:
            images.check(message)
        except ValueError as error:
            refusal = self._refuse(name, error)
            self.refusal = refusal if self.views[name].required else self.refusal
            return
        received = self.now()
        if not received:
            return  # The simulation has not published its time yet.
        stamp = conversions.nanoseconds(message.header.stamp) or self.clock.stamp
        self._check_ahead(name, topic, (stamp - self.clock.stamp) / 1e9)
        taken = self.clock.moment(stamp)
        if not self._sync.image(name, Stamped(stamp, taken, received, message)):
            self._node.warn_throttled(
                'stamps set back',
                f'stamps of view {name} jumped back to {stamp / 1e9:.3f} s; later images dropped',
            )
        if received - taken > self._max_age:
            self._node.warn_throttled(
                'old stamps',
                f'images of view {name} must be at most max_image_age {self._max_age:g} s old '
                f'(got {received - taken:.1f} s); check the clock of the camera, or set '
                'use_sim_time for a recording',
            )
        self.on_image()

    def _check_ahead(self, name: str, topic: str, ahead: float) -> None:
        """Report a camera whose clock is ahead (s), as no joint state is near its images."""
        if ahead <= self._max_ahead:
            self._ahead.pop(name, None)
            return
        self._ahead[name] = (
            f'images of view {name} must not be stamped in the future (got {ahead:.2f} s ahead of '
            f'the clock of this node on {topic}); synchronize the clock of the camera, or set '
            'use_sim_time alike for all nodes'
        )
        self._node.warn_throttled('stamps ahead', self._ahead[name])

    def _on_instruction(self, message: String) -> None:
        if message.data != self.instruction:  # `publish_instruction` is received here, too
            self._is_unpublished = False
            self.set_instruction(message.data)

    def _refuse(self, name: str, error: ValueError) -> str:
        """Log that an image is refused, and return the line."""
        line = f'image of view {name} refused: {error}'
        self._node.warn_throttled(f'image of {name}', line)
        return line


class ObservationBuffer(ObservationInputs):
    """Keeps the newest moment, for a node that sends observations to a policy server."""

    def __init__(self, node: SuiteNode, on_instruction: Callable[[str], None]) -> None:
        contract = node.embodiment.contract
        super().__init__(node, contract.views, joint_inputs(contract), on_instruction)
        self._newest: SyncedMoment | None = None

    def restart(self) -> None:
        super().restart()
        self._newest = None

    def newest(self) -> SyncedMoment | None:
        """Return the newest moment; None if it is older than `camera_timeout`."""
        now = self.now()
        self._newest = self._sync.newest(now) or self._newest
        is_recent = self._newest is not None and now - self._newest.received <= self.timeout
        return self._newest if is_recent else None

    def on_image(self) -> None:
        """Keep the newest complete moment; images of the next one may arrive before `newest`."""
        self._newest = self._sync.newest(self.now()) or self._newest


def _bounds(node: SuiteNode) -> dict[str, Bounds]:
    """Return the known limits, by joint, that positions are checked against.

    A node that only observes may have no robot_description; then the contract's limits hold.
    """
    robot = node.embodiment
    urdf = node.description
    linear = linear_joints(robot, urdf)
    try:
        return bounds_of(limits_from_contract(robot, urdf), linear)
    except LimitError:  # the action node refuses it
        pass
    bounds = {}
    for axis, is_linear in zip(robot.axes, linear, strict=True):
        limits, unit = robot.contract.limits[axis], 'm' if is_linear else 'rad'
        lower, upper = limits.position or (-math.inf, math.inf)
        velocity = limits.velocity or math.inf
        bounds[axis] = Bounds(lower, upper, velocity, limits.continuous, unit)
    return bounds
