"""Prefill frames from the cameras, joints and instruction of a robot.

The control period is on the world's clock, and the deadlines of the engine are on the steady
clock. Pixels are converted only for frames that are prefilled.
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
from embodied_kv.nodes.observation.clock import FrameThrottle
from embodied_kv.nodes.observation.inputs import ObservationInputs
from embodied_kv.nodes.observation.joint_states import joint_inputs
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.types import Observation

IDLE_PERIOD = 0.5  # s, steady clock, between two frames of a watched robot without instruction
PAUSE = 1.0  # s without a frame until the reason is logged; three periods if those are longer


class ObservationPipeline(ObservationInputs):
    """Prefills the newest observation of a node, `control_frequency` times a second.

    Without an instruction, frames are prefilled while a `SceneObserver` watches the robot, but
    their handles are not published, so that the arm does not move. missing: views whose camera
    sends no images.

    Args:
        node: The node that observes.
        on_handle: Takes the handle of each frame, on the engine thread.
        on_instruction: Takes each new instruction, '' for none.
    """

    def __init__(
        self,
        node: SuiteNode,
        on_handle: Callable[[KvHandle], None],
        on_instruction: Callable[[str], None] = lambda instruction: None,
    ) -> None:
        contract = node.embodiment.contract
        super().__init__(node, contract.views, joint_inputs(contract), on_instruction)
        self._host, self._on_handle, self._period = node.host, on_handle, node.suite.period
        self._allowed = node.host.engine.budget.allowed  # s from a frame to its chunk's deadline
        self._throttle = FrameThrottle(self._period)
        self._last = 0.0  # moment of the last frame
        self._last_steady = -math.inf  # the same, on the steady clock
        self.missing: tuple[str, ...] = ()
        self._prefilled: tuple[Observation, SyncedMoment] | None = None  # the newest
        self._failure = ''  # of the newest prefill
        node.every(self._period, self._check_cameras)

    def restart(self) -> None:
        super().restart()
        self._last = self.clock.now()
        self._throttle.restart(self._last)
        self.missing = ()
        self._prefilled, self._failure = None, ''
        self._warn_if_cut()

    def set_instruction(self, instruction: str) -> None:
        if not self.instruction:
            self._last = self.clock.now()  # none was due before
        super().set_instruction(instruction)
        self._warn_if_cut()

    @property
    def waits(self) -> str:
        return super().waits or self._failure

    def scene(self) -> SceneSummary | None:
        """Return a summary of the newest frame; None if its row may no longer be used."""
        host = self._host
        if self._prefilled is None:
            return None
        newest, moment = self._prefilled
        if newest.deadline + host.engine.kv.frames.grace < time.monotonic():
            return None
        views = zip(host.model.views, newest.images, strict=True)
        images = {view: thumbnail(image) for view, image in views if image is not None}
        return SceneSummary(moment.state.positions, images, newest.stamp, newest.robot)

    def on_image(self) -> None:
        """Prefill the newest moment if a frame is due."""
        now = self.now()
        if not self._is_due(now):
            return
        moment = self._sync.newest(now)
        observation = None if moment is None else self._observation(moment)
        if moment is None or observation is None:
            return
        self._last, self._last_steady = now, time.monotonic()
        self._throttle.record_frame(now)
        self._host.device.prefill(observation, partial(self._on_prefilled, observation, moment))

    def _is_due(self, now: float) -> bool:
        if self.instruction:
            return self._throttle.is_due(now)
        is_watched = self._host.session(self._node.robot).observer.is_watched
        return is_watched and time.monotonic() - self._last_steady >= IDLE_PERIOD

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
            deadline=self.clock.to_steady(moment.taken + self._allowed),
            sequence=next(self._host.sequences[self._node.robot]),
            robot=self._node.robot,
        )

    def _warn_if_cut(self) -> None:
        model, text = self._host.model, self.instruction
        if self._host.engine.policy.truncates(text):
            self._node.warn_throttled(
                'long instruction',
                f'the instruction of {len(text)} characters is cut to fit the {model.max_text} '
                f'text tokens of {model.name}',
            )

    def _check_cameras(self) -> None:
        """Report cameras that no longer send images, cameras that do again, and missing frames."""
        now = self.now()
        before, self.missing = self.missing, self._sync.missing(now)
        for view in self.missing:
            if view not in before:
                effect = 'no frames' if self.views[view].required else 'frames lack this view'
                self._node.log_warning(
                    f'silence of {view}', f'camera of view {view} sends no images: {effect}'
                )
        for view in before:
            if view not in self.missing:
                self._node.log_info(f'return of {view}', f'camera of view {view} sends images')
        if self.instruction and now - self._last > max(PAUSE, 3 * self._period):
            self._node.warn_throttled(
                'no frame', f'no frame: {self.waits or "stamps do not increase"}'
            )

    def _on_prefilled(
        self, observation: Observation, moment: SyncedMoment, future: Future[KvHandle]
    ) -> None:
        try:
            handle = future.result()
        except CancelledError:
            return  # a newer frame replaced it
        except Exception as error:  # any error of the engine; the next frame may succeed
            self._failure = f'prefill failed: {error!r}'
            self._node.warn_throttled('prefill', self._failure)
            return
        self._failure = ''
        self._prefilled = observation, moment
        if observation.instruction and self._node.active and self.instruction:
            self._on_handle(handle)
