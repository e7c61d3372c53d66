"""Time, taken in turn, and what the machine can do at most.

On a CPU it is the process's own time, as cores may be shared: one thread computes, so that own
time is wall time wherever its core is free. On CUDA it is wall time, the device's work done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.common.reading import products, readings


def now(device: str) -> float:
    """s."""
    if device != 'cuda':
        return time.process_time()
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(work: Callable[[], object], device: str) -> float:
    """Of one call."""
    began = now(device)
    work()
    return now(device) - began


class ChargedTime:
    """What work is charged in virtual time, s: its process's own, in proportion to a reference.

    So a slow machine, or a busy one, changes no result. Differences mean something, between two
    calibrations.
    """

    def __init__(self) -> None:
        self._speed = 1.0

    def __call__(self) -> float:
        """s of work so far."""
        return time.process_time() / self._speed

    def calibrate(self, took: float, charged: float) -> None:
        """From now on, work that takes as long as the reference took now is charged so much."""
        self._speed = took / charged


def order(ways: Iterable[str], number: int) -> list[str]:
    """Forwards and backwards in turn, so that none is always the first, or the one after another.

    number: of the round.
    """
    return list(ways)[:: -1 if number % 2 else 1]


def in_turn(
    works: Mapping[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Seconds of each call of each way, round by round; one more round comes first, uncounted."""
    taken: dict[str, list[float]] = {way: [] for way in works}
    for number in range(repeats + 1):
        for way in order(works, number):
            taken[way].append(seconds(works[way], device))
    return {way: own[1:] for way, own in taken.items()}


@dataclass(frozen=True)
class Ceilings:
    """GFLOP/s of a matrix product and GB/s of memory, at best."""

    gflops: float
    gbytes: float

    def floor(self, flops: float, bytes: float) -> float:
        """Seconds below which so much cannot be done."""
        return max(flops / self.gflops, bytes / self.gbytes) / 1e9


def ceilings(device: str, repeats: int = 5) -> Ceilings:
    """Measured in bfloat16, each by the fastest way that `reading` knows."""
    reads = readings(torch.bfloat16, device)
    calls, operations = products(torch.bfloat16, device)
    works = calls | {name: work for name, (work, _) in reads.items()}
    best = {name: min(taken) for name, taken in in_turn(works, repeats, device).items()}
    moved = max(size / best[name] for name, (_, size) in reads.items())
    rate = operations / min(best[name] for name in calls)
    return Ceilings(rate / 1e9, moved / 1e9)
