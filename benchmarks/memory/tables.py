"""Replies as rows: right and stale answers, times, and comparisons of ways.

Knows replies. Does not know how they were computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common.clock import Ceilings
from benchmarks.common.paired import paired
from benchmarks.memory.asking import Reply, of, waiting
from benchmarks.memory.floor import floor_seconds
from benchmarks.memory.spans import COMPUTE
from benchmarks.memory.ways import BLEND, FULL, KEEP
from embodied_kv.model.planner import PlannerConfig
from training.evaluate.report import rate


def names(replies: Sequence[Reply]) -> list[str]:
    """Return the names of the ways, in order of appearance."""
    return list(dict.fromkeys(r.way for r in replies))


def right(replies: Sequence[Reply]) -> list[bool]:
    return [r.right for r in replies]


def differ(replies: Sequence[Reply], first: str, second: str, retrieved: int | None) -> dict:
    """Return the difference of right answers, first way less second, in points; see `paired`."""
    some, other = (of(replies, name, retrieved) for name in (first, second))
    found = paired(right(some), right(other), [r.story for r in some])
    points = {name: 100 * found[name] for name in ('difference', 'low', 'high')}
    return dict(
        first=first,
        second=second,
        retrieved=retrieved or 'all',
        **points,
        gained=found['gained'],
        lost=found['lost'],
        p_value=found['p_value'],
    )


def answers(replies: Sequence[Reply], way: str, retrieved: int) -> dict:
    """Return right and stale answers of one way.

    told: number of questions with all deciding facts in view; told_right: % of those that are
    right. stale: answers that were true before the last update that mattered, where the truth was
    in view; guessed_stale: where it was not, so the answer was a guess. outdated: number of
    segments in view with an old text.
    """
    some = of(replies, way, retrieved)
    told = [r for r in some if r.told]
    found = rate(sum(right(some)), len(some))
    return dict(
        way=way,
        retrieved=retrieved,
        right=100 * found['rate'],
        low=100 * found['low'],
        high=100 * found['high'],
        n=len(some),
        told=len(told),
        told_right=100 * _mean(right(told)) if told else None,
        stale=sum(r.stale for r in told),
        guessed_stale=sum(r.stale for r in some if not r.told),
        outdated=sum(r.outdated for r in some),
        in_view=_mean(len(r.plan.segments) for r in some),
        computed=100 * _mean(r.computed_share for r in some),
        **work(some),
    )


def work(replies: Sequence[Reply]) -> dict:
    """Return means per question of the invalidated tokens, the fresh tokens and the idle tokens.

    invalidated: before the question. fresh: computed for units at it. idle: computed after it.
    """
    return dict(
        invalidated=_mean(r.lost for r in replies),
        fresh_tokens=_mean(r.fresh for r in replies),
        idle_tokens=_mean(r.idle for r in replies),
    )


def seconds(
    replies: Sequence[Reply], way: str, retrieved: int, config: PlannerConfig, machine: Ceilings
) -> dict:
    """Return the time to the first token, medians in ms.

    fresh: the part of it that computes missing KV.
    """
    some = of(replies, way, retrieved)
    first = [r.plan.seconds_first_token for r in some]
    fresh = [r.plan.seconds_fresh for r in some]
    floors = [floor_seconds(config, r, machine) for r in some]
    return dict(
        way=way,
        retrieved=retrieved,
        first_token_ms=1e3 * _median(first),
        fresh_ms=1e3 * _median(fresh),
        without_fresh_ms=1e3 * _median(np.subtract(first, fresh)),
        full_takes_x=faster(replies, way, FULL, retrieved),
        tokens=_mean(r.plan.tokens for r in some),
        in_view=_mean(len(r.plan.segments) for r in some),
        computed=100 * _mean(r.computed_share for r in some),
        **work(some),
        floor_ms=1e3 * _median(floors),
        of_floor=_median(np.divide(floors, first)),
    )


def spent(replies: Sequence[Reply], way: str, retrieved: int) -> dict:
    """Return how the time to the first token is spent, means in ms.

    layers: computing them, and choosing by importance; waiting: for loads, between layers; rest:
    retrieval, tokenizing and the first token.
    """
    some = of(replies, way, retrieved)
    layers = [r.plan.timeline.busy(COMPUTE) for r in some]
    loads = [waiting(r.plan.timeline) for r in some]
    fresh = [r.plan.seconds_fresh for r in some]
    whole = [r.plan.seconds_first_token for r in some]
    rest = np.subtract(whole, np.sum([layers, loads, fresh], axis=0))
    parts = dict(fresh=fresh, layers=layers, waiting=loads, rest=rest)
    return dict(way=way, retrieved=retrieved) | {
        f'{name}_ms': 1e3 * _mean(values) for name, values in parts.items()
    }


def faster(replies: Sequence[Reply], way: str, other: str, retrieved: int) -> float:
    """Return the ratio of the other way's time to the way's, the median over paired questions."""
    pairs = zip(of(replies, way, retrieved), of(replies, other, retrieved), strict=True)
    ratios = [o.plan.seconds_first_token / w.plan.seconds_first_token for w, o in pairs]
    return _median(ratios)


def target(answered: Sequence[Reply], timed: Sequence[Reply], retrieved: int) -> dict:
    """Return whether KEEP is faster than CacheBlend, and not significantly less often right."""
    speed = faster(timed, KEEP, BLEND, retrieved)
    found = differ(answered, KEEP, BLEND, retrieved)
    said = 'better' if found['low'] > 0 else 'worse' if found['high'] < 0 else 'no difference'
    return dict(
        retrieved=retrieved,
        cacheblend_takes_x=speed,
        text_takes_x=faster(timed, KEEP, FULL, retrieved),
        accuracy=said,
        difference=found['difference'],
        low=found['low'],
        high=found['high'],
        met=speed > 1 and found['high'] >= 0,
    )


def _mean(values) -> float:
    return float(np.mean(list(values)))


def _median(values) -> float:
    return float(np.median(list(values)))
