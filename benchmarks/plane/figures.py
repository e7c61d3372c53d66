"""Rows of figures, and the candidate fixed shares. Knows worlds after their run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean, stdev

from benchmarks.plane.settings import Settings
from benchmarks.plane.story import story
from benchmarks.plane.world import RESERVED, Way, World

RATES = ('memory_hits', 'answers', 'capsules_kept')
# Student's t for a 95% interval of the mean of 2, 3, ... pairs; the last one serves for more.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def lived(settings: Settings, way: Way, seed: int, shifting: bool) -> dict:
    """Return the figures of one run.

    Rates are shares of what was requested; lost: s per virtual minute.
    """
    world = World(settings, way).live(story(settings, seed, shifting))
    c, minutes = world.counts, settings.seconds / 60
    return dict(
        lost=sum(world.lost.values()) / minutes,
        memory_hits=c['hits'] / max(1, c['units']),
        answers=c['answers'] / max(1, c['questions']),
        capsules_kept=c['kept'] / max(1, c['restores']),
        live_streams=c['streams held'] / c['frames'],
        capsules_there=c['capsules held'] / c['frames'],
        lost_memory=world.lost['memory'] / minutes,
        lost_streams=world.lost['streams'] / minutes,
        lost_capsules=world.lost['capsules'] / minutes,
        frames_refused=c['frames refused'],
    )


def splits(settings: Settings) -> Iterable[Way]:
    """Yield all fixed shares of the budget, each at least one whole part, that frames fit into."""
    parts, budget, s = settings.parts, settings.budget, settings.sizes
    row = 8 * s.layers * s.head_dim * s.prefix_tokens
    for language, memory in product(range(1, parts), repeat=2):
        if (capsules := parts - language - memory) > 0:
            way = Way(*(n * budget // parts for n in (language, memory, capsules)))
            if way.language >= RESERVED * row:
                yield way


def mean(runs: Sequence[dict]) -> dict:
    """Return the mean of each figure."""
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def rate(run: dict) -> float:
    """Return the mean of the three rates."""
    return fmean(run[name] for name in RATES)


def difference(runs: Sequence[dict], others: Sequence[dict], name: str) -> tuple[float, float]:
    """Return the mean of the paired differences, and half of its 95% interval."""
    pairs = [a[name] - b[name] for a, b in zip(runs, others, strict=True)]
    t = T95[min(len(pairs) - 2, len(T95) - 1)]
    return fmean(pairs), t * stdev(pairs) / len(pairs) ** 0.5
