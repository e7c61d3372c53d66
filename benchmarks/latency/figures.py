"""Figures of the points: rates, means, the cost of latency, and each way compared with `off`.

All differences are paired by episode. Knows points and episodes. Does not know how they were
measured.

Source: see `benchmarks.common.paired`; Efron and Tibshirani 1993, chapter 13, percentiles of
resampled episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from benchmarks.common.paired import paired
from benchmarks.latency.points import Episodes, Point
from benchmarks.latency.ways import OFF
from training.evaluate.report import rate

RESAMPLES, SEED = 2000, 0
SMOOTH = ('jerk_rms', 'jerk_max', 'seam')

Points = Mapping[Point, Episodes]


def rows(points: Points) -> list[dict]:
    """Return a row for each point.

    seconds: median of the episodes that succeeded; the other figures are means over all episodes.
    """
    return [
        named(point)
        | dict(
            success=rate(int(some.done.sum()), len(some.done)),
            wrong=some.outcomes.count('w'),
            by_family={
                family: int(some.done[some.of(family)].sum())
                for family in dict.fromkeys(some.families)
            },
            seconds=float(median(some.seconds[some.done])) if some.done.any() else None,
            chunks=float(some.chunks.mean()),
            joint_path=float(some.joint_path.mean()),
            **{name: _mean(getattr(some, name)) for name in SMOOTH},
        )
        for point, some in points.items()
    ]


def named(point: Point) -> dict:
    """Return the first columns of the row of a point."""
    return dict(way=point.way, latency=point.latency, euler_steps=point.euler_steps)


def costs(points: Points) -> list[dict]:
    """Return what each way loses on its own 0 ms; a row for each later point, see `lost`."""
    return [
        named(point) | lost(some, points[at_once])
        for point, some in points.items()
        if (at_once := replace(point, latency_ms=0.0, spread=0.0)) in points and at_once != point
    ]


def by_steps(points: Points) -> list[dict]:
    """Return what fewer Euler steps lose on the most; a row for each point, see `lost`."""
    most = max(point.euler_steps for point in points)
    return [
        named(point) | dict(than=most) | lost(some, points[whole])
        for point, some in points.items()
        if (whole := replace(point, euler_steps=most)) in points and whole != point
    ]


def against_off(points: Points) -> list[dict]:
    """Compare each way with `off` at the same latency; a row for each point, see `beside`."""
    return [
        named(point) | beside(some, points[off])
        for point, some in points.items()
        if (off := replace(point, way=OFF)) in points and off != point
    ]


def lost(some: Episodes, reference: Episodes) -> dict:
    """Return how many points of success these episodes lose compared with the reference.

    at_most: upper bound of the loss, with 95% on one side. by_family: the same for each family.
    """

    def of(which: np.ndarray) -> dict:
        pair = paired(some.done[which], reference.done[which], some.scenes[which])
        return dict(lost=0.0 - 100 * pair['difference'], at_most=-100 * pair['bound'])

    return _pooled_and_by_family(some, of)


def beside(some: Episodes, off: Episodes) -> dict:
    """Compare the episodes of one way with those of `off`.

    difference, low, high: points of success, with a 95% interval. above: lower bound of the
    difference, with 95% on one side. p_value: see `paired`. by_family: the same for each family.
    jerk_rms, jerk_max, seam: see `ratio`.
    """

    def of(which: np.ndarray) -> dict:
        pair = paired(some.done[which], off.done[which], some.scenes[which])
        points = dict(difference='difference', low='low', high='high', above='bound')
        found = {name: 100 * pair[key] for name, key in points.items()}
        return found | {name: pair[name] for name in ('gained', 'lost', 'p_value')}

    ratios = {name: ratio(getattr(some, name), getattr(off, name), some.scenes) for name in SMOOTH}
    return _pooled_and_by_family(some, of) | ratios


def _pooled_and_by_family(some: Episodes, of: Callable[[np.ndarray], dict]) -> dict:
    """Return the figures of all episodes, and of each family.

    of: takes a mask of episodes, bool [n], and returns their figures.
    """
    every = np.full(len(some.outcomes), True)
    families = dict.fromkeys(some.families)
    return of(every) | dict(by_family={family: of(some.of(family)) for family in families})


def ratio(of: np.ndarray, to: np.ndarray, scenes: np.ndarray) -> dict | None:
    """Return the mean of one way over the mean of another.

    Both means are over the episodes [n] that have a value in both ways.

    low, high: 95% interval; at_most: bound with 95% on one side. Scenes are resampled, each with
    all its episodes. None if there is nothing to compare.
    """
    both = np.isfinite(of) & np.isfinite(to)
    if not both.any() or not to[both].any():
        return None
    _, scene = np.unique(scenes[both], return_inverse=True)
    sums = np.stack([np.bincount(scene, part[both]) for part in (of, to)])  # [2, scenes]
    drawn = np.random.default_rng(SEED).integers(sums.shape[1], size=(RESAMPLES, sums.shape[1]))
    upper, lower = sums[:, drawn].sum(2)  # [resamples] each
    ratios = np.divide(upper, lower, out=np.full(RESAMPLES, np.inf), where=lower > 0)
    low, at_most, high = np.quantile(ratios, [0.025, 0.95, 0.975], method='higher')
    whole = float(sums[0].sum() / sums[1].sum())
    return dict(ratio=whole, low=float(low), high=float(high), at_most=float(at_most))


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values, None if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
