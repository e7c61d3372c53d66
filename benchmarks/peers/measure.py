"""Compares the outputs of all ways, then times every phase of every way in turn.

Knows ways and their clock. Does not know which model a way runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.common import clock, report
from benchmarks.common.command import BenchmarkError
from benchmarks.peers.figures import PHASES, Taken
from benchmarks.peers.ways import Asked, Way

WARM_UP = 2  # rounds that do not count


def greatest_difference(way: Way, frames: Sequence[Asked], reference: Way) -> float:
    """Return the greatest difference of the chunks of all frames.

    It includes the chunk that is denoised from a held prefix.
    """
    pairs = [(way.frame(asked), reference.frame(asked)) for asked in frames]
    pairs.append((way.denoise(), pairs[0][1]))
    return float(np.max([np.abs(a - b) for a, b in pairs]))  # NaN, where there is one


def check(
    ways: Mapping[str, Way], frames: Sequence[Asked], reference: Way, tolerance: float
) -> dict[str, float]:
    """Return the greatest difference of each way.

    frames: the first is the one that the ways are timed with. Raises BenchmarkError if a
    difference exceeds the tolerance.
    """
    found = {}
    for name, way in ways.items():
        found[name] = greatest_difference(way, frames, reference)
        print(f'{name}: differs by at most {found[name]:.2g}', file=sys.stderr, flush=True)
    if beyond := [f'{name} by {d:.2g}' for name, d in found.items() if not d <= tolerance]:
        raise BenchmarkError(f'outputs differ by more than {tolerance:g}: {", ".join(beyond)}')
    return found


def in_turn(ways: Mapping[str, Way], first: Asked, repeats: int, device: str) -> dict[str, Taken]:
    """Return the wall seconds by phase and way, round by round."""
    return {phase: _phase(ways, phase, first, repeats, device) for phase in PHASES}


def _phase(ways: Mapping[str, Way], phase: str, first: Asked, repeats: int, device: str) -> Taken:
    works = {name: getattr(way, phase) for name, way in ways.items()}
    if phase == 'frame':
        works = {name: partial(work, first) for name, work in works.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + repeats):
        for name in clock.order(ways, number):
            taken[name].append(report.once(works[name], device))
    return {name: own[WARM_UP:] for name, own in taken.items()}
