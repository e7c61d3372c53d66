"""The ways that the judge compares, and the settings fixed before any result on these problems.

The compared ways recompute the same share of memory in each layer beyond the first, on average
over those layers, by the same schedule. The numbers of segments are chosen so that this is the
same number of tokens by token and by segment (25 and 50 segments of two tokens; 0.16 is the share
of CacheBlend's paper, 0.32 twice that).

KEEP: hops of importance as the paper's text has them (directed), with each segment's attention to
itself (diagonal), in both directions (symmetric), and in both directions with the hops added up
(accumulated), each without restart and with 0.5; and without hops. CacheBlend: by token as in its
paper, and by segment. Each of them with the same share in every layer (even), with a share that
falls from one and a half to half of it (gradual), and with one that falls geometrically from 1
(falling).

Development and report have separate judges and problems. Development selects the default KEEP (the
one that is right most often over both shares and all problems; the first named of equals), and the
report measures it. The judges of the report are not unseen: restart, an even share and CacheBlend
by token were once compared on other problems of all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.memory.reuse_variants import (
    PROPAGATIONS,
    SCHEDULES,
    CacheBlend,
    VariedKeep,
    named_schedule,
)
from embodied_kv.memory.reuse import FullRecompute, Reuse

SHARES = (0.16, 0.32)  # of memory, in each layer beyond the first
SIZES = (25, 50)  # segments
LINKS = (1, 2, 3)
RESTART = 0.5
FULL, REUSE = 'full recompute', 'full reuse'
LEAST_FULL, LEAST_LOST = 0.99, 0.30  # the gate: rate of full recompute, loss of full reuse


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    judges: seeds of the judges. seed: of the problems. problems: number for each cell and judge. A
    cell is a number of segments, a layout and a number of links.
    """

    judges: tuple[int, ...]
    seed: int
    problems: int


PARTS = dict(
    development=Part(judges=(0,), seed=6_000_011, problems=8),
    report=Part(judges=(1, 2), seed=7_000_003, problems=10),
)


def average(share: float, layers: int) -> float:
    """Return the mean share over all layers, of which the first computes everything."""
    return (1 + share * (layers - 1)) / layers


def ways(share: float, layers: int) -> Iterator[tuple[str, Reuse]]:
    """Yield all ways that recompute this share, with their names; KEEP of the paper first."""
    for name in SCHEDULES:
        schedule = named_schedule(name, layers, average(share, layers))
        for restart, added in ((0.0, ''), (RESTART, ' restart')):
            for hop in PROPAGATIONS:
                keep = VariedKeep(schedule=schedule, restart=restart, propagation=hop)
                yield f'keep {hop} {name}{added}', keep
        yield f'keep without hops {name}', VariedKeep(hops=0, schedule=schedule)
        yield f'cacheblend token {name}', CacheBlend(schedule)
        yield f'cacheblend segment {name}', CacheBlend(schedule, segments=True)


def bounds() -> dict[str, Reuse]:
    """Return the two bounds: full recompute and full reuse."""
    return {FULL: FullRecompute(), REUSE: Reuse()}
