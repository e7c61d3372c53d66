"""Medians of the rounds, ratios of LeRobot's times to the engine's, and the aims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.ratio import ratio

PHASES = ('prefill', 'denoise', 'frame')
AIMED = 'ours_compiled'

Taken = Mapping[str, Sequence[float]]  # way -> s of each round


def times(taken: Mapping[str, Taken], floors: Mapping[str, float]) -> list[dict]:
    """Return the median ms of each way, a row for each phase. floors: s of each phase."""
    return [
        dict(phase=phase)
        | {f'{way}_ms': 1e3 * statistics.median(seconds) for way, seconds in ways.items()}
        | dict(floor_ms=1e3 * floors[phase])
        for phase, ways in taken.items()
    ]


def ratios(taken: Mapping[str, Taken], aims: Mapping[tuple[str, str], float]) -> list[dict]:
    """Return how many times as fast each of ours is as each of theirs, with a 95% interval.

    A row for each phase and pair. aims: of the compiled engine, by phase and way of LeRobot. aim,
    verdict: None without an aim; 'reached' or 'missed' where the whole interval is on one side.
    """
    return [
        dict(phase=phase, ours=one, theirs=other)
        | (found := ratio(ways[other], ways[one]))
        | _judged(aims.get((phase, other)) if one == AIMED else None, found)
        for phase, ways in taken.items()
        for one in ways
        for other in ways
        if one.startswith('ours') and other.startswith('theirs')
    ]


def _judged(aim: float | None, found: Mapping[str, float]) -> dict:
    if aim is None:
        return dict(aim=None, verdict=None)
    if found['low'] >= aim:
        return dict(aim=aim, verdict='reached')
    return dict(aim=aim, verdict='missed' if found['high'] < aim else 'undecided')
