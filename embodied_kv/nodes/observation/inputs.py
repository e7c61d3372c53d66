"""A robot's cameras, joints and instruction, as they arrive at a node.

Knows topics and messages. Messages are checked on arrival and stored as they are; what belongs
together, `synchronizer` decides; what becomes of it, the subclass. Moments are s on the world's
clock, see `clock`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

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
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.description import InputDescription, ViewInput
from embodied_kv.nodes.observation.joint_states import READERS, JointStates
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.observation.synchronizer import Stamped, SyncedMoment, Synchronizer
from embodied_kv.nodes.observation.unheard import Unheard
from embodied_kv.text import shown

AnyImage = Image | CompressedImage


class ObservationInputs:
    """Subscribes for a node and keeps what belongs together; subclasses fill in what follows.

    inputs: what is observed. on_instruction: takes each new instruction, '' where there is nothing
    to do any more, on the thread that tells it. instruction: what the robot is to do now; '' for
    nothing.
    """

    def __init__(
        self,
        node: SuiteNode,
        inputs: InputDescription,
        on_instruction: Callable[[str], None] = lambda instruction: None,
    ) -> None:
        params = node.params.read(ObservationParams)
        self.inputs, self.timeout = inputs, params.camera_timeout
        self.clock = WorldClock(node.get_clock())
        self.instruction = params.instruction.strip()
        self._node, self._on_told = node, on_instruction
        self._max_age, self._latest = params.max_image_age, 0.0
        self._unheard = Unheard(node, self._kinds())
        self._ahead: dict[str, str] = {}  # by view: why the clock of its camera is wrong
        self._max_ahead = params.max_state_age / 2
        self.joints = JointStates(
            node,
            inputs.joints,
            params.max_state_age,
            _bounds(node),
            self._unheard.heard,
            self.on_joints,
        )
        self._sync = Synchronizer(
            inputs.views,
            self.joints,
            params.sync_tolerance,
            params.camera_timeout,
            params.max_image_age,
        )
        for view in inputs.views:
            kind = CompressedImage if view.compressed else Image
            node.subscribe(kind, view.topic, partial(self._on_image, view), qos.SENSOR)
        node.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION, always=True)
        self._instructions = node.publisher(String, 'instruction', qos.INSTRUCTION)
        node.params.watch('instruction', self.tell)
        node.every(1.0, self._look)

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        self._latest = self.clock.now()
        self._unheard.restart()
        self._ahead.clear()
        self.joints.restart()
        self.joints.wrap()
        self._sync.restart(self._latest)

    def tell(self, instruction: str) -> None:
        """What the robot is to do from now on, blank for nothing; the topic hears of it."""
        self.put_in_force(instruction)
        self._instructions.publish(String(data=self.instruction))

    def put_in_force(self, instruction: str) -> None:
        """As `tell`, of what the topic said."""
        self.instruction = instruction if instruction.strip() else ''
        self.joints.wrap()  # A policy sees a new episode.
        said = f"'{shown(self.instruction)}'" if self.instruction else 'none: nothing to do'
        self._node.log_info('instruction', f'instruction: {said}')
        self._on_told(self.instruction)

    @property
    def waits(self) -> str:
        """Return why there was no new observation; '' if there was one."""
        if not self.instruction:
            return 'no instruction'
        ahead = '; '.join(self._ahead.values())  # It is the cause of whatever else is missing.
        return ahead if ahead and self._sync.waits else self._sync.waits

    def now(self) -> float:
        """s on the world's clock. If that was set back, or begins, everything starts anew."""
        now = self.clock.now()
        if now < self._latest or (now and not self._latest):
            self.restart()
        self._latest = now
        return now

    def pixels(self, moment: SyncedMoment) -> dict[str, NDArray[np.uint8]] | None:
        """By view, those that there are: [height, width, 3] RGB, cropped and upright.

        None where one of them cannot be read, which is warned of.
        """
        seen: dict[str, NDArray[np.uint8]] = {}
        for view, message in self.messages(moment):
            try:
                seen[view.name] = view.framed(images.rgb(message))
            except ValueError as error:
                self._refuse(view, error)
                return None
        return seen

    def state(self, moment: SyncedMoment) -> NDArray[np.float64] | None:
        """The policy's, float64 [D]; None where a number of it is not told, which is warned of."""
        told = moment.state
        try:
            return self._node.embodiment.state.policy(
                dict(zip(self.joints.names, told.positions, strict=True)),
                dict(zip(self.joints.names, told.velocities, strict=True)),
            )
        except ValueError as error:
            self._node.warn_throttled('state', f'no state: {error}')
            return None

    def messages(self, moment: SyncedMoment) -> list[tuple[ViewInput, AnyImage]]:
        """The views that there are, and what their cameras sent."""
        pairs = zip(self.inputs.views, moment.images, strict=True)
        return [(view, message) for view, message in pairs if message is not None]

    # ------------------------------------------------------------------ what subclasses fill in

    def on_image(self) -> None:
        """An image has been stored."""

    def on_joints(self) -> None:
        """Joints are there that the newest image has waited for."""
        self.on_image()

    # ------------------------------------------------------------------ what arrives

    def _kinds(self) -> dict[str, type]:
        cameras = {v.topic: CompressedImage if v.compressed else Image for v in self.inputs.views}
        clock = {'/clock': Clock} if self.clock.is_simulated else {}
        joints = {joint.topic: READERS[joint.type].kind for joint in self.inputs.joints}
        return cameras | joints | clock

    def _look(self) -> None:
        if self.clock.now():
            self._unheard.heard('/clock')
        self.joints.collect()
        self._unheard.look()

    def _on_image(self, view: ViewInput, message: AnyImage) -> None:
        self._unheard.heard(view.topic)
        try:
            images.check(message)
        except conversions.Refused as error:
            self._refuse(view, error)
            return
        received = self.now()
        if not received:
            return  # nobody knows yet what time it is
        stamp = conversions.nanoseconds(message.header.stamp) or self.clock.stamp
        self._check_ahead(view, (stamp - self.clock.stamp) / 1e9)
        taken = self.clock.moment(stamp)
        if not self._sync.image(view.name, Stamped(stamp, taken, received, message)):
            self._node.warn_throttled(
                'stamps set back',
                f'stamps of view {view.name} jumped back to {stamp / 1e9:.3f} s: starting anew',
            )
        if received - taken > self._max_age:
            self._node.warn_throttled(
                'old stamps',
                f'images of view {view.name} are {received - taken:.1f} s old and not used: check '
                'the clock of the camera; set use_sim_time for a recording',
            )
        self.on_image()

    def _check_ahead(self, view: ViewInput, ahead: float) -> None:
        """Report a camera whose clock is ahead (s): no joint state is near such an image."""
        if ahead <= self._max_ahead:
            self._ahead.pop(view.name, None)
            return
        self._ahead[view.name] = (
            f'images of view {view.name} must not be stamped in the future (got {ahead:.2f} s '
            f'ahead of the clock of this node on {view.topic}); synchronize the clock of the '
            'camera, or set use_sim_time alike for all nodes'
        )
        self._node.warn_throttled('stamps ahead', self._ahead[view.name])

    def _on_instruction(self, message: String) -> None:
        if message.data != self.instruction:  # else it is known, as is what comes back from `tell`
            self.put_in_force(message.data)

    def _refuse(self, view: ViewInput, error: ValueError) -> None:
        self._node.warn_throttled(
            f'image of {view.name}', f'image of view {view.name} refused: {error}'
        )


def _bounds(node: SuiteNode) -> dict[str, Bounds]:
    """Return the limits by joint that positions are checked against, as far as they are known.

    A node that only observes may have no robot_description. Then the limits that are written in
    the contract hold.
    """
    robot = node.embodiment
    urdf = node.description
    linear = linear_joints(robot, urdf)
    try:
        return bounds_of(limits_from_contract(robot, urdf), linear)
    except LimitError:  # The node that moves the arm refuses it.
        pass
    bounds = {}
    for axis, is_linear in zip(robot.axes, linear, strict=True):
        limits, unit = robot.contract.limits[axis], 'm' if is_linear else 'rad'
        lower, upper = limits.position or (-math.inf, math.inf)
        velocity = limits.velocity or math.inf
        bounds[axis] = Bounds(lower, upper, velocity, limits.continuous, unit)
    return bounds
