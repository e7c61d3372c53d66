"""A robot's capsules on the disk: before each step, and in it now and then.

Knows a session and its parts. Does not know when a process is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.whole.body import Body
from benchmarks.whole.process import Process
from benchmarks.whole.robot import on_device
from benchmarks.whole.turns import Turn
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.mission import MissionPart, MissionState
from embodied_kv.planning.planning import Planning
from embodied_kv.serving.stream_quota import ServedPart
from embodied_kv.session.robot_session import RobotSession, StepCheckpoints

T = TypeVar('T')
STAY = (MissionPart.name,)  # in a rewind


class Capsules:
    """All of it is called on the robot's turn.

    state: of the mission. on_state: told which one goes on. interval: s between two in a step.
    """

    def __init__(
        self,
        body: Body,
        process: Process,
        turn: Turn,
        planning: Planning,
        folder: Path,
        fingerprint: str,
        interval: float,
        state: Callable[[], MissionState],
        on_state: Callable[[MissionState | None], None],
    ) -> None:
        self._body, self._process, self._turn, self._interval = body, process, turn, interval
        self._registry = Registry(
            fingerprint, TierCapacities(device=0, host=0), Disk(folder / 'capsules')
        )
        part = ServedPart(process.engine, body.name, process.kept, process.shares)
        self._session = RobotSession(part, self._registry, self._call)
        self._session.participants.join(process.voices)
        for one in (MemoryPart(planning), MissionPart(state, on_state)):
            self._session.register(one)
        self._marks, self._others = (
            StepCheckpoints(self._session, name, Tier.DISK) for name in ('mark', 'step')
        )
        self._at = body.now

    def close(self) -> None:
        """The process is over, and the next one may use the folder."""
        self._registry.close()

    def mark(self) -> None:
        """Before a step."""
        self._keep(self._marks)

    def during(self) -> None:
        """In a step, every so often."""
        if self._body.now - self._at >= self._interval:
            self._keep(self._others)

    def rewind(self) -> None:
        """Streams go back to the boundary; one of another process is no boundary of this."""
        try:
            self._marks.roll_back(exclude=STAY)
        except CapsuleError:
            return

    def restore(self) -> bool:
        """From the newest there is; whether there was one."""
        found = min(self._registry.entries(), key=lambda entry: entry.age, default=None)
        if found is not None:
            self._session.restore(found.name, self._turn.here(self._scene))
        return found is not None

    def _keep(self, boundaries: StepCheckpoints) -> None:
        self._at = self._body.now
        boundaries.take(lambda: self._turn.here(self._scene))
        self._body.record.capsules += 1

    def _scene(self) -> SceneSummary:
        body = self._body
        body.advance()
        images = body.table.render()
        return SceneSummary(
            body.table.state().astype(float),
            {name: thumbnail(images[name]) for name in CAMERAS},
            round(body.now * 1e9),
            body.name,
        )

    def _call(self, work: Callable[[], T]) -> Future[T]:
        """In place of the device thread's: the turn waits."""
        done: Future[T] = Future()
        done.set_result(on_device(self._turn, self._process, 'capsules', partial(work)))
        return done
