"""What the rounds say: medians, how many times as long theirs takes as ours, and the aims.

Knows seconds of phases and ways. Does not know how they were taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.ratio import ratio

PHASES = ('prefill', 'denoise', 'frame')
# How many times as fast as LeRobot's ours has to be, compiled.
AIMS = {
    ('denoise', 'theirs_eager'): 2.5,
    ('denoise', 'theirs_compiled'): 1.3,
    ('frame', 'theirs_eager'): 1.3,
    ('frame', 'theirs_compiled'): 1.1,
}
AIMED = 'ours_compiled'

Taken = Mapping[str, Sequence[float]]  # way -> s of each round


def times(taken: Mapping[str, Taken], floors: Mapping[str, float]) -> list[dict]:
    """Median ms of each way; a row a phase. floors: s of each phase."""
    return [
        dict(phase=phase)
        | {f'{way}_ms': 1e3 * statistics.median(seconds) for way, seconds in ways.items()}
        | dict(floor_ms=1e3 * floors[phase])
        for phase, ways in taken.items()
    ]


def ratios(taken: Mapping[str, Taken]) -> list[dict]:
    """How many times as fast each of ours is as each of theirs, with a 95% interval.

    A row a phase and pair. aim, verdict: None where nothing is aimed at; reached and missed are
    said where the whole interval is on one side of the aim.
    """
    return [
        dict(phase=phase, ours=one, theirs=other)
        | (found := ratio(ways[other], ways[one]))
        | _judged(AIMS.get((phase, other)) if one == AIMED else None, found)
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
