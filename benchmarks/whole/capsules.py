"""A robot's capsules on the disk: one before each step, and one during it from time to time.

Knows a session and its parts. Does not know when a process is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.whole.body import Body
from benchmarks.whole.costs import MIB
from benchmarks.whole.process import Process
from benchmarks.whole.robot import on_device
from benchmarks.whole.turns import Turn
from embodied_kv.capsule.capsule import Capsule, CapsuleError
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
STAY = (MissionPart.name,)  # unchanged by a rewind


class Capsules:
    """The capsules of one robot; all methods are called on the robot's turn.

    state: returns the state of the mission. on_state: takes the state that is resumed. interval: s
    between two capsules during a step.
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
        self._at, self._marked, self._frozen = body.now, 0, 0

    def close(self) -> None:
        """Close the registry, so that the next process can use the folder."""
        self._registry.close()

    def mark(self) -> None:
        """Take a capsule before a step."""
        self._marked = self._keep(self._marks)

    def during(self) -> None:
        """Take a capsule during a step if the interval has passed."""
        if self._body.now - self._at >= self._interval:
            self._keep(self._others)

    def rewind(self) -> None:
        """Roll the streams back to the last boundary, if it was taken in this process."""
        try:
            self._marks.roll_back(exclude=STAY)
        except CapsuleError:
            return
        self._charge(self._process.costs.restore, self._marked)

    def restore(self) -> bool:
        """Restore the newest capsule; return False if there is none, or no room for it."""
        found = min(self._registry.entries(), key=lambda entry: entry.age, default=None)
        if found is None:
            return False
        try:
            resumed = self._session.restore(found.name, self._turn.here(self._scene))
        except CapsuleError:
            return False
        self._charge(self._process.costs.restore, _bytes(resumed.capsule))
        return True

    def _charge(self, cost: float, size: int) -> None:
        """Charge a verb, whose own steps are free. cost: s per MiB. size: bytes."""
        charge = partial(self._process.meter.charge, cost * size / MIB)
        self._on_device(charge)

    def _keep(self, boundaries: StepCheckpoints) -> int:
        """Take a capsule, and return its bytes."""
        self._at = self._body.now
        boundaries.snapshot(lambda: self._turn.here(self._scene))
        self._charge(self._process.costs.snapshot, self._frozen)
        self._body.record.capsules += 1
        return self._frozen

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

    def _on_device(self, work: Callable[[], T]) -> T:
        return on_device(self._turn, self._process, 'capsules', work, self._body.name)

    def _call(self, work: Callable[[], T]) -> Future[T]:
        """Run work in place of the engine thread; the turn waits for it."""
        done: Future[T] = Future()
        found = self._on_device(work)
        if isinstance(found, tuple) and isinstance(found[0], Capsule):
            self._frozen = _bytes(found[0])
        done.set_result(found)
        return done


def _bytes(capsule: Capsule) -> int:
    """Return the bytes of its tensors; those of the rest vary with measured times."""
    return sum(tensor.nbytes for tensor in capsule.tensors.values())
