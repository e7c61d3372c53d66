"""A robot's capsules on the disk: before each step, with its first chunk, and now and then.

Knows a session and its parts. Does not know when a process is killed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from embodied_kv.bench.whole.body import Body
from embodied_kv.bench.whole.process import Process
from embodied_kv.bench.whole.robot import on_device
from embodied_kv.bench.whole.turns import Turn
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.mission import MissionState
from embodied_kv.planning.mission_part import MissionPart
from embodied_kv.planning.planning import Planning
from embodied_kv.serving.served_part import ServedPart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.sim.scene import CAMERAS

T = TypeVar('T')
MARK, STEP = 'mark', 'step'
STAY = MissionPart.name, MemoryPart.name  # in a rewind


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
        self._session = RobotSession(process.engine, self._registry, self._call, robot=body.name)
        part = ServedPart(process.engine, body.name, process.kept, process.shares)
        part.on_resumed = process.voices.own
        self._session.engine_part = part
        for one in (part, MemoryPart(planning), MissionPart(state, on_state)):
            self._session.register(one)
        self._at = body.now

    def mark(self) -> None:
        """Before a step."""
        self._keep(MARK)
        self._at = -math.inf  # what is in force is not in this one

    def during(self) -> None:
        """In a step, with its first chunk and every so often."""
        if self._body.now - self._at >= self._interval:
            self._keep(STEP)

    def rewind(self) -> None:
        """Streams go back to the boundary; one of another process is no boundary of this."""
        try:
            self._session.rollback(self._names(MARK)[-1], but=STAY)
        except (CapsuleError, IndexError):
            return

    def restore(self) -> bool:
        """From the newest there is; whether there was one."""
        names = self._names('')
        if names:
            self._session.restore(names[-1], self._turn.here(self._scene))
        return bool(names)

    def _keep(self, kind: str) -> None:
        before, self._at = self._names(kind), self._body.now
        number = 1 + max((_number(name) for name in before), default=0)
        scene = self._turn.here(self._scene)
        self._session.snapshot(f'{kind}-{number}', scene, Tier.DISK)
        self._body.record.capsules += 1
        for name in before:
            self._registry.drop(name)

    def _names(self, kind: str) -> list[str]:
        """Oldest first."""
        found = sorted(self._registry.entries(), key=lambda entry: -entry.age)
        return [entry.name for entry in found if entry.name.startswith(kind)]

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


def _number(name: str) -> int:
    return int(name.rpartition('-')[2])
