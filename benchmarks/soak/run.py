"""A soak from the first frame to the last check.

Knows the order of the steps. Does not know operations, nor the invariants.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.common.hostile_device import HostileDevice
from benchmarks.soak import checks, language, resident
from benchmarks.soak.boundaries import inject
from benchmarks.soak.faults import Faults
from benchmarks.soak.ledger import DONE, Ledger
from benchmarks.soak.operations import FRAMES, OFTEN, OTHERS, draw
from benchmarks.soak.world import World

PARTS = 10  # of a run; resident memory is read after each, the first is warm-up
CHECK, REST = 50, 500  # frames between two checks, and between two rests
STUCK = 600.0  # s without a check after which the stacks are printed and the process ends
GROWTH = 0.02  # maximum growth of resident memory after the first part
COVERED = 5000  # frames within which every operation succeeds once


@dataclass(frozen=True)
class Point:
    """The state after a part: frames so far, s that the part took, bytes of the process."""

    frames: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Soak:
    """The results of a run. trimmed: bytes at the end, after all free memory was returned."""

    ledger: Ledger
    struck: dict[str, int]
    points: list[Point]
    trimmed: int

    @property
    def growth(self) -> float:
        return resident.growth([point.bytes for point in self.points])

    @property
    def slope(self) -> float:
        """Return the growth in bytes per frame, after warm-up."""
        return resident.slope(
            [point.frames for point in self.points], [point.bytes for point in self.points]
        )


def soak(
    frames: int,
    seed: int,
    failures: float = 1.0,
    progress: Callable[[int], object] = lambda done: None,
    hostile: bool = False,
) -> Soak:
    """Run so many frames, at least one per part; end early if an invariant is broken.

    failures: how often calls fail, relative to the default. hostile: compute on a `HostileDevice`,
    any operation of which may fail.
    """
    ledger, on = Ledger(), HostileDevice() if hostile else nullcontext()
    with _silent(), TemporaryDirectory() as folder, Faults(seed, failures) as faults, on as device:
        with World(Path(folder), faults, ledger) as world:
            inject(faults, world, device)
            points = list(_parts(world, Random(seed), max(frames, PARTS), progress))
            if not ledger.broken:
                checks.given_up(world)
        checks.refused_at_the_end(world)
    found = Soak(ledger, dict(sorted(faults.struck.items())), points, resident.trimmed())
    _judge(found)
    return found


def _parts(
    world: World, random: Random, frames: int, progress: Callable[[int], object]
) -> Iterator[Point]:
    world.rest()
    resident.trimmed()  # garbage of the imports would hide growth
    present = threading.active_count(), checks.open_files()
    ends = [frames * (part + 1) // PARTS for part in range(PARTS)]
    for part, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        world.ledger.part = {0: 'first', PARTS - 1: 'last'}.get(part)
        began = time.perf_counter()
        for frame in range(begin, end):
            _period(world, random)
            if frame % CHECK == 0:
                _alive(checks.in_flight, world)
            if frame % REST == 0 or frame == end - 1:
                _alive(checks.at_rest, world, *present)
            if world.ledger.broken:
                break
            progress(frame + 1)
        yield Point(frame + 1, time.perf_counter() - began, resident.resident())
        if world.ledger.broken:
            return


def _period(world: World, random: Random) -> None:
    """Run one period: a frame, sometimes another operation, and language."""
    draw(FRAMES, random).begin(world, random.getrandbits(64))
    if random.random() < OFTEN:
        draw(OTHERS, random).begin(world, random.getrandbits(64))
    language.listen(world, random)


def _alive(check: Callable, world: World, *present: int) -> None:
    """Run a check; print the stacks and end the process if the next one is STUCK s late."""
    faulthandler.dump_traceback_later(STUCK, exit=True, file=sys.__stderr__)
    check(world, *present)


def _judge(found: Soak) -> None:
    """Check the invariants of a run as a whole."""
    ledger, done = found.ledger, found.points[-1].frames
    if found.growth > GROWTH:
        mib = [round(point.bytes / resident.MIB, 1) for point in found.points]
        ledger.breaks('resident memory', f'grew by {found.growth:.1%} after warm-up: {mib} MiB')
    if done >= COVERED:
        names = [operation.name for operation in (*FRAMES, *OTHERS)]
        never = [name for name in names if not ledger.outcomes[name][DONE]]
        if never:
            ledger.breaks('every operation succeeds once', f'never: {", ".join(never)}')


@contextmanager
def _silent() -> Iterator[None]:
    """Disable logging, because injected failures are logged by the thousand."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        faulthandler.cancel_dump_traceback_later()
