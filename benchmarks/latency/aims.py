"""The aims of the benchmark, fixed before any result, and whether the points reach them.

Knows the figures of points. Does not know how they are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.latency.figures import Points, beside, lost
from benchmarks.latency.points import Point
from benchmarks.latency.ways import OFF, TRAINED

LATE = 300.0  # ms at which the losses of `trained` are judged
LOSES, LOSES_AT_MOST, FAMILY_LOSES = 3.0, 5.0, 6.0  # points: pooled, its bound, each family
LONG = 200.0  # ms from which `trained` has to beat `off`
SEAM = 1 / 3  # maximum ratio to the seam of `off`
FEW, FEW_LOSE = 3, 2.0  # Euler steps, and the points they may lose against the most steps


def verdict(points: Points) -> list[dict]:
    """Return a row for each aim and point that it applies to: reached or missed.

    An aim has no row if the points that it needs were not measured.
    """
    return [*_loses_little(points), *_beats_off(points)]


def _loses_little(points: Points) -> Iterator[dict]:
    for late, at_once in _pairs(points, latency_ms=0.0):
        if (late.way, late.latency_ms, late.spread) == (TRAINED, LATE, 0.0):
            found = lost(points[late], points[at_once])
            family, most = max(
                ((name, of['lost']) for name, of in found['by_family'].items()),
                key=lambda pair: pair[1],
            )
            yield _line(late, 'lost since 0 ms, points', found['lost'], '<=', LOSES)
            yield _line(late, 'the same, 95% bound', found['at_most'], '<=', LOSES_AT_MOST)
            yield _line(late, f'the same, {family}, which loses most', most, '<=', FAMILY_LOSES)


def _beats_off(points: Points) -> Iterator[dict]:
    for late, off in _pairs(points, way=OFF):
        if late.way == TRAINED and late.latency_ms >= LONG:
            found = beside(points[late], points[off])
            yield _line(late, 'points above off, low end of 95%', found['low'], '>', 0.0)
            if found['seam'] is not None:
                yield _line(late, "seam, of off's", found['seam']['ratio'], '<=', SEAM)


def few_steps(points: Points) -> list[dict]:
    """Return whether FEW Euler steps lose at most FEW_LOSE points; a row for each way and latency.

    Where they lose more, a schedule that finishes near actions first is needed.
    """
    most = max(point.euler_steps for point in points)
    return [
        _line(few, f'lost on {most} steps, points', found['lost'], '<=', FEW_LOSE)
        for few, whole in _pairs(points, euler_steps=most)
        if few.euler_steps == FEW
        for found in (lost(points[few], points[whole]),)
    ]


def _pairs(points: Points, **other: object) -> Iterator[tuple[Point, Point]]:
    """Yield each point with the point that differs only in `other`, if it was measured."""
    for point in points:
        if (reference := replace(point, **other)) in points and reference != point:
            yield point, reference


def _line(point: Point, aim: str, figure: float, sign: str, wanted: float) -> dict:
    reached = figure > wanted if sign == '>' else figure <= wanted
    return dict(
        way=point.way,
        latency=point.latency,
        euler_steps=point.euler_steps,
        aim=aim,
        figure=figure,
        wanted=f'{sign} {wanted:.3g}',
        verdict='reached' if reached else 'missed',
    )
