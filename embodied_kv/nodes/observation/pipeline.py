"""From cameras, joints and an instruction to prefilled frames.

Knows topics, clocks and the engine's device thread. Callbacks store the newest message; what
belongs together, `sync` decides; pixels are converted only for frames that are prefilled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.preprocess import prompt_tokens
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.observation.synchronizer import SyncedMoment, Synchronizer
from embodied_kv.text import shown
from embodied_kv.types import Observation

EARLY = 0.25  # of a period that a frame may come before its time, so that cameras may jitter
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


class ObservationPipeline:
    """Prefills a node's newest observation, `rate` times a second.

    on_handle: takes each frame's handle, on the device thread.
    """

    def __init__(self, node: SuiteNode, on_handle: Callable[[KvHandle], None]) -> None:
        params = node.params.read(ObservationParams)
        model = node.host.model
        if unknown := [view for view in params.views if view not in model.views]:
            raise ValueError(
                f'parameter views: {model.name} has no view {", ".join(unknown)}; it has: '
                f'{", ".join(model.views)}'
            )
        if len(node.suite.joint_names) != model.state_dim:
            raise ValueError(
                f'parameter joint_names has {len(node.suite.joint_names)} joints, '
                f'{model.name} has {model.state_dim}'
            )
        self._node, self._host, self._on_handle = node, node.host, on_handle
        self._joint_names, self._period = node.suite.joint_names, node.suite.period
        self._sync = Synchronizer(params.views, params.sync_tolerance, params.camera_timeout)
        self._slots = [params.views.index(v) if v in params.views else None for v in model.views]
        self._told = ''  # the instruction that was sent, '' before the first
        self._due = self._given = 0.0  # s: when the next frame is, when the last one was
        self._lacking = False  # a frame was due, but something of it had not arrived
        self._missing: tuple[str, ...] = ()
        self._newest: Observation | None = None
        for view, topic in zip(params.views, params.image_topics, strict=True):
            node.subscribe(Image, topic, partial(self._on_image, view), qos.SENSOR)
        node.subscribe(JointState, 'joint_states', self._on_joints, qos.JOINTS)
        node.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION, always=True)
        node.every(self._period, self._look)

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        self._given = time.monotonic()
        self._sync.restart(self._given)
        self._missing = ()
        self._newest = None
        self._warn_if_cut(self.instruction)

    @property
    def waits(self) -> str:
        """Why there was no new observation, '' if there was."""
        return self._sync.waits if self.instruction else 'no instruction yet'

    @property
    def missing(self) -> tuple[str, ...]:
        """Views without a living camera."""
        return self._missing

    def witness(self) -> SceneSummary | None:
        """What the robot saw and felt just now; None without a frame of the last second or so."""
        newest, host = self._newest, self._host
        if newest is None or newest.deadline + host.engine.kv.grace < time.monotonic():
            return None
        views = zip(host.model.views, newest.images, strict=True)
        images = {view: thumbnail(image) for view, image in views if image is not None}
        return SceneSummary(newest.state.astype(np.float64), images, newest.stamp, newest.robot)

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
        self._poll()

    def _on_joints(self, message: JointState) -> None:
        try:
            positions = conversions.positions(message, self._joint_names)
        except conversions.Refused as error:
            self._node.warn_throttled('joint state', f'joint state refused: {error}')
            return
        self._sync.joints(self._stamp(message), time.monotonic(), positions)
        if self._lacking:
            self._poll()

    def _on_instruction(self, message: String) -> None:
        if not message.data.strip():
            self._node.warn_throttled(
                'empty instruction',
                f"an empty instruction is none: '{shown(self.instruction)}' stays in force; to "
                'stop the robot, deactivate its action node',
            )
            return
        self.tell(message.data)

    def tell(self, instruction: str) -> None:
        """From now on the robot is to do this; '' for what the parameter says."""
        self._told = instruction
        self._node.log_info('instruction', f"instruction: '{shown(self.instruction)}'")
        self._warn_if_cut(self.instruction)

    def _warn_if_cut(self, text: str) -> None:
        """Say so if the policy sees less than the whole text, in its widest prompt."""
        model, policy = self._host.model, self._host.engine.policy
        widest = np.ones(model.state_dim, np.float32)  # bins of three digits
        if prompt_tokens(policy.tokenizer, text, widest, model.max_text)[1]:
            self._node.warn_throttled(
                'long instruction',
                f'the instruction of {len(text)} characters is cut to fit the {model.max_text} '
                f'text tokens of {model.name}',
            )

    @property
    def instruction(self) -> str:
        """What the robot is to do now; '' if nobody has said."""
        return self._told or self._node.params.read(ObservationParams).instruction.strip()

    def _stamp(self, message: Image | JointState) -> int:
        """ns on the ROS clock; of receipt, where a driver leaves its stamp empty."""
        return (
            conversions.nanoseconds(message.header.stamp)
            or self._node.get_clock().now().nanoseconds
        )

    # ------------------------------------------------------------------ what goes on

    def _poll(self) -> None:
        """Prefill the newest moment if one is due; images call, so that it is young."""
        now = time.monotonic()
        if now < self._due - EARLY * self._period or not self.instruction:
            return
        moment = self._sync.newest(now)
        self._lacking = moment is None
        if moment is None:
            return
        self._given = now
        self._due = max(self._due, now - EARLY * self._period) + self._period
        observation = self._observation(moment)
        self._newest = observation
        self._host.device.prefill(observation).add_done_callback(self._on_prefilled)

    def _observation(self, moment: SyncedMoment) -> Observation:
        images = [None if image is None else conversions.rgb(image) for image in moment.images]
        return Observation(
            images=tuple(None if slot is None else images[slot] for slot in self._slots),
            state=moment.positions,
            instruction=self.instruction,
            stamp=moment.stamp,
            deadline=self._moment(moment) + self._period,
            sequence=next(self._host.sequences[self._node.robot]),
            robot=self._node.robot,
        )

    def _moment(self, moment: SyncedMoment) -> float:
        """The observation's moment, s on the steady clock; of receipt, if ROS time is simulated.

        A stamp from the future (clocks of two machines) does not put the deadline off.
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

    def _look(self) -> None:
        """Say which cameras fell silent, and which came back."""
        now = time.monotonic()
        missing, self._missing = self._missing, self._sync.look(now)
        for view in self._missing:
            if view not in missing:
                self._node.log_warning(
                    f'silence of {view}',
                    f'camera of view {view} sends nothing: going on without that view',
                )
        for view in missing:
            if view not in self._missing:
                self._node.log_info(f'return of {view}', f'camera of view {view} is back')
        if now - self._given > max(STALE, 3 * self._period):
            self._node.warn_throttled('no frame', f'no frame: {self.waits}')

    def _on_prefilled(self, future: Future[KvHandle]) -> None:
        try:
            handle = future.result()
        except CancelledError:
            return  # a newer frame took its place
        except Exception as error:  # of the engine, whatever it is: the next frame is another try
            self._node.warn_throttled('prefill', f'prefill failed: {error!r}')
            return
        if self._node.active:
            self._on_handle(handle)
