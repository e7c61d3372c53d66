"""What the judge compares, and what is fixed before any result on these problems.

Ways that are compared have the same share of memory in each layer beyond the first, on average
over those layers, by the same schedule; numbers of segments are such that this is the same number
of tokens by token and by segment (25 and 50 segments of two tokens; 0.16 is the share of
CacheBlend's paper, 0.32 twice that).

KEEP: hops of importance as the paper's text has them (directed), with each segment's attention to
itself (diagonal), in both directions (symmetric), and so with hops added up (accumulated), each
without restart and with 0.5; and none. CacheBlend: by token as its paper has it, and by segment.
Each with the same share in every layer (even), with one that goes down from one and a half to half
of it (gradual), and with one that falls geometrically from all (falling).

Development and report are judges and problems apart: the first says which KEEP is the default (the
one that is right most often over both shares and all problems; the first named of equals), and the
second says how good it is. The judges of the report are not unseen: restart, an even share and
CacheBlend by token were once compared on other problems of all three.
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
LEAST_FULL, LEAST_LOST = 0.99, 0.30  # the gate: full recompute's rate, and what full reuse loses


@dataclass(frozen=True)
class Part:
    """judges: seeds of those who are asked. seed: of problems. problems: of a cell and a judge.

    A cell is a number of segments, a layout and a number of links.
    """

    judges: tuple[int, ...]
    seed: int
    problems: int


PARTS = dict(
    development=Part(judges=(0,), seed=6_000_011, problems=8),
    report=Part(judges=(1, 2), seed=7_000_003, problems=10),
)


def average(share: float, layers: int) -> float:
    """Mean over all layers, of which the first computes everything."""
    return (1 + share * (layers - 1)) / layers


def ways(share: float, layers: int) -> Iterator[tuple[str, Reuse]]:
    """By name: all that compute this share; KEEP first, as the paper has it."""
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
    """What is computed in full, and what is not at all."""
    return {FULL: FullRecompute(), REUSE: Reuse()}
