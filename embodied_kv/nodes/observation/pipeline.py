"""From cameras, joints and an instruction to prefilled frames.

Knows the control period and the engine's device thread. Pixels are converted only for frames that
are prefilled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import numpy as np

from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.kv.handle import KvHandle
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.inputs import STALE, ObservationInputs, ObservationParams
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.types import Observation

EARLY = 0.25  # of a period that a frame may come before its time, so that cameras may jitter


class ObservationPipeline(ObservationInputs):
    """Prefills a node's newest observation, `rate` times a second.

    on_handle: takes each frame's handle, on the device thread. missing: views without a living
    camera.
    """

    def __init__(self, node: SuiteNode, on_handle: Callable[[KvHandle], None]) -> None:
        model, views = node.host.model, node.params.read(ObservationParams).views
        if unknown := [view for view in views if view not in model.views]:
            raise ValueError(
                f'parameter views: {model.name} has no view {", ".join(unknown)}; it has: '
                f'{", ".join(model.views)}'
            )
        if len(node.suite.joint_names) != model.state_dim:
            raise ValueError(
                f'parameter joint_names has {len(node.suite.joint_names)} joints, '
                f'{model.name} has {model.state_dim}'
            )
        super().__init__(node)
        self._host, self._on_handle, self._period = node.host, on_handle, node.suite.period
        self._slots = [views.index(v) if v in views else None for v in model.views]
        self._due = self._given = 0.0  # s: when the next frame is, when the last one was
        self._incomplete = False  # a frame was due, but something of it had not arrived
        self.missing: tuple[str, ...] = ()
        self._newest: Observation | None = None
        node.every(self._period, self._check_cameras)

    def restart(self) -> None:
        super().restart()
        self._given = time.monotonic()
        self.missing = ()
        self._newest = None
        self._warn_if_cut()

    def tell(self, instruction: str) -> None:
        super().tell(instruction)
        self._warn_if_cut()

    def scene(self) -> SceneSummary | None:
        """What the robot saw and felt just now; None without a frame of the last second or so."""
        newest, host = self._newest, self._host
        if newest is None or newest.deadline + host.engine.kv.grace < time.monotonic():
            return None
        views = zip(host.model.views, newest.images, strict=True)
        images = {view: thumbnail(image) for view, image in views if image is not None}
        return SceneSummary(newest.state.astype(np.float64), images, newest.stamp, newest.robot)

    def on_image(self) -> None:
        """Prefill the newest moment if one is due; an image has just come, so it is young."""
        now = time.monotonic()
        if now < self._due - EARLY * self._period or not self.instruction:
            return
        moment = self._sync.newest(now)
        self._incomplete = moment is None
        if moment is None:
            return
        self._given = now
        self._due = max(self._due, now - EARLY * self._period) + self._period
        self._newest = self._observation(moment)
        self._host.device.prefill(self._newest).add_done_callback(self._on_prefilled)

    def on_joints(self) -> None:
        """They may be what the frame that is due has waited for."""
        if self._incomplete:
            self.on_image()

    def _observation(self, moment: SyncedMoment) -> Observation:
        images = [None if image is None else conversions.rgb(image) for image in moment.images]
        return Observation(
            images=tuple(None if slot is None else images[slot] for slot in self._slots),
            state=conversions.positions(moment.positions, self._node.suite.joint_names),
            instruction=self.instruction,
            stamp=moment.stamp,
            deadline=self.observed(moment) + self._period,
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
        now = time.monotonic()
        before, self.missing = self.missing, self._sync.look(now)
        for view in self.missing:
            if view not in before:
                self._node.log_warning(
                    f'silence of {view}',
                    f'camera of view {view} sends nothing: going on without that view',
                )
        for view in before:
            if view not in self.missing:
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
