"""Times of calls in turn, and the best rates of the machine.

On a CPU, times are CPU times of the process, since cores may be shared. One thread computes, so
they equal wall times while its core is free. On CUDA, times are wall times that include the
device's work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from benchmarks.common.reading import products, readings

Way = TypeVar('Way')


def now(device: str) -> float:
    """Return the time (s): CPU time of the process; on CUDA wall time after a synchronization."""
    if device != 'cuda':
        return time.process_time()
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the seconds of one call."""
    began = now(device)
    work()
    return now(device) - began


def timer(device: str) -> Callable[[], float]:
    """Return a clock (s) that does not wait for the device.

    CPU time of the process where one thread computes on a CPU, as it then equals the wall time
    while the core is free; otherwise wall time.
    """
    alone = device == 'cpu' and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


class ChargedTime:
    """Virtual time (s) that work is charged: CPU time of the process, scaled by a reference.

    The scale makes results independent of the speed and the load of the machine. Only differences
    between two calibrations have a meaning.
    """

    def __init__(self) -> None:
        self._speed = 1.0

    def __call__(self) -> float:
        """Return the charged seconds so far."""
        return time.process_time() / self._speed

    def calibrate(self, took: float, charged: float) -> None:
        """Charge `charged` s from now on for work that takes as long as the reference `took`."""
        self._speed = took / charged


def order(ways: Iterable[Way], number: int) -> list[Way]:
    """Return the ways, reversed in odd rounds, so that none is always first or after the same one.

    number: of the round.
    """
    return list(ways)[:: -1 if number % 2 else 1]


def in_turn(
    works: Mapping[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Return the seconds of each call of each way, round by round, after a warm-up round."""
    taken: dict[str, list[float]] = {way: [] for way in works}
    for number in range(repeats + 1):
        for way in order(works, number):
            taken[way].append(seconds(works[way], device))
    return {way: own[1:] for way, own in taken.items()}


@dataclass(frozen=True)
class Ceilings:
    """The best rate of a matrix product (GFLOP/s) and the best memory bandwidth (GB/s)."""

    gflops: float
    gbytes: float

    def floor(self, flops: float, bytes: float) -> float:
        """Return the minimum seconds for these operations and bytes."""
        return max(flops / self.gflops, bytes / self.gbytes) / 1e9


def ceilings(device: str, repeats: int = 5) -> Ceilings:
    """Measure both ceilings in bfloat16, each by the fastest way of `reading`."""
    reads = readings(torch.bfloat16, device)
    calls, operations = products(torch.bfloat16, device)
    works = calls | {name: work for name, (work, _) in reads.items()}
    best = {name: min(taken) for name, taken in in_turn(works, repeats, device).items()}
    moved = max(size / best[name] for name, (_, size) in reads.items())
    rate = operations / min(best[name] for name in calls)
    return Ceilings(rate / 1e9, moved / 1e9)
