"""From cameras, joints and an instruction to prefilled frames.

Knows the control period, on the world's clock, and the engine's device thread, which races on the
steady clock. Pixels are converted only for frames that are prefilled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial

from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.kv.handle import KvHandle
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.inputs import ObservationInputs
from embodied_kv.nodes.observation.pace import Pace
from embodied_kv.nodes.observation.params import described
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.types import Observation

STANDING = 0.5  # s, steady clock, between two frames of a watched robot that has nothing to do
PAUSE = 1.0  # s without a frame, after which the reason is said; three periods if those are longer


class ObservationPipeline(ObservationInputs):
    """Prefills a node's newest observation, `rate` times a second.

    on_handle: takes each frame's handle, on the device thread. on_instruction: takes each new
    instruction; after '' no frame is given until there is another one. While the robot is watched
    frames are made all the same, which are not given: nobody acts upon them. missing: views
    without a living camera.
    """

    def __init__(
        self,
        node: SuiteNode,
        on_handle: Callable[[KvHandle], None],
        on_instruction: Callable[[str], None] = lambda instruction: None,
    ) -> None:
        super().__init__(node, described(node.embodiment.contract), on_instruction)
        self._host, self._on_handle, self._period = node.host, on_handle, node.suite.period
        self._allowed = node.host.engine.budget.allowed  # s from a frame to its chunk's deadline
        self._pace, self._given = Pace(self._period), 0.0  # given: when the last frame was
        self.missing: tuple[str, ...] = ()
        self._made = -math.inf  # the same, on the steady clock
        self._newest: tuple[Observation, SyncedMoment] | None = None  # that is prefilled
        node.every(self._period, self._check_cameras)

    def restart(self) -> None:
        super().restart()
        self._given = self.clock.now()
        self._pace.restart(self._given)
        self.missing = ()
        self._newest = None
        self._warn_if_cut()

    def put_in_force(self, instruction: str) -> None:
        if not self.instruction:
            self._given = self.clock.now()  # none was due before
        super().put_in_force(instruction)
        self._warn_if_cut()

    def scene(self) -> SceneSummary | None:
        """What the robot saw and felt just now; None without a frame of the last second or so."""
        host = self._host
        if self._newest is None:
            return None
        newest, moment = self._newest
        if newest.deadline + host.engine.kv.frames.grace < time.monotonic():
            return None
        views = zip(host.model.views, newest.images, strict=True)
        images = {view: thumbnail(image) for view, image in views if image is not None}
        return SceneSummary(moment.state.positions, images, newest.stamp, newest.robot)

    def on_image(self) -> None:
        """Prefill the newest moment if one is due; an image has just come, so it is young."""
        now = self.now()
        if not self._is_due(now):
            return
        moment = self._sync.newest(now)
        observation = moment and self._observation(moment)
        if observation is None:
            return
        self._given = now
        self._pace.gave(now)
        self._made = time.monotonic()
        self._host.device.prefill(observation, partial(self._on_prefilled, observation, moment))

    def _is_due(self, now: float) -> bool:
        if self.instruction:
            return self._pace.is_due(now)
        is_watched = self._host.session(self._node.robot).observer.is_watched
        return is_watched and time.monotonic() - self._made >= STANDING

    def _observation(self, moment: SyncedMoment) -> Observation | None:
        images = self.pixels(moment)
        state = self.state(moment)
        if images is None or state is None:
            return None
        return Observation(
            images=tuple(images.get(view) for view in self._host.model.views),
            state=state,
            instruction=self.instruction,
            stamp=moment.stamp,
            deadline=self.clock.steady(moment.taken + self._allowed),
            sequence=next(self._host.sequences[self._node.robot]),
            robot=self._node.robot,
        )

    def _warn_if_cut(self) -> None:
        """Say so if the policy sees less than the whole instruction, in its widest prompt."""
        model, policy, text = self._host.model, self._host.engine.policy, self.instruction
        if policy.cuts(text):
            self._node.warn_throttled(
                'long instruction',
                f'the instruction of {len(text)} characters is cut to fit the {model.max_text} '
                f'text tokens of {model.name}',
            )

    def _check_cameras(self) -> None:
        """Say which cameras fell silent, and which came back."""
        now = self.now()
        before, self.missing = self.missing, self._sync.look(now)
        for view in self.missing:
            if view not in before:
                self._node.log_warning(
                    f'silence of {view}',
                    f'camera of view {view} sends nothing: {self._without(view)}',
                )
        for view in before:
            if view not in self.missing:
                self._node.log_info(f'return of {view}', f'camera of view {view} is back')
        if self.instruction and now - self._given > max(PAUSE, 3 * self._period):
            self._node.warn_throttled(
                'no frame', f'no frame: {self.waits or "stamps stand still"}'
            )

    def _without(self, view: str) -> str:
        required = next(v.required for v in self.inputs.views if v.name == view)
        return 'no frame without it' if required else 'going on without that view'

    def _on_prefilled(
        self, observation: Observation, moment: SyncedMoment, future: Future[KvHandle]
    ) -> None:
        """Of a frame that was made without an instruction nobody is told, so nobody acts on it."""
        try:
            handle = future.result()
        except CancelledError:
            return  # a newer frame took its place
        except Exception as error:  # of the engine, whatever it is: the next frame is another try
            self._node.warn_throttled('prefill', f'prefill failed: {error!r}')
            return
        self._newest = observation, moment  # only now is there a frame to ask about
        if observation.instruction and self._node.active and self.instruction:
            self._on_handle(handle)
