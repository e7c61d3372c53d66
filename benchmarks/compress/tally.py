"""Right and wrong answers, counted by way: a row of each, a table, and the verdict at a tenth.

The claim of all comparisons: at 10% our method is non-inferior to the whole prefix within 2
points. It holds if the one-sided 95% bound of the paired difference is above -2 points. Knows ways
and outcomes. Does not know the questions.

Source: VL-Cache, section 5.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.common.paired import paired
from benchmarks.compress.ways import OWN_METHODS, P, Way
from training.evaluate.report import rate

MARGIN = 0.02
WHOLE = Way('full', 1.0, by='')
SPILL = 0.005  # excess over the keep ratio above which a baseline has another budget


@dataclass
class Tally:
    """Whether each question was answered right, in each way and from the whole (None)."""

    right: dict[Way | None, list[bool]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[Way, list[float]] = field(default_factory=lambda: defaultdict(list))
    frames: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def of(self, way: Way | None) -> np.ndarray:
        return np.array(self.right[way])

    def against(self, way: Way | None, other: Way | None = None) -> dict:
        return paired(self.of(way), self.of(other), self.frames)


def row(tally: Tally, way: Way | None) -> dict:
    """Return a way's row: what it kept, its rate, and the difference to the whole prefix.

    The rate has Wilson's interval.
    """
    right = tally.of(way)
    named = way or WHOLE
    return asdict(named) | dict(
        label=named.label,
        kept=float(np.mean(tally.kept[way])),
        right=rate(int(right.sum()), len(right)),
        to_whole=tally.against(way),
    )


def verdict(tally: Tally, ours: Way) -> dict:
    """Return the comparison of ours with the whole, and with the best other method.

    The others keep as much and choose as late.
    """
    others = [
        way
        for way in tally.right
        if way and way.method not in OWN_METHODS
        if (way.by, way.keep_ratio, way.after) == (ours.by, ours.keep_ratio, ours.after)
        if np.mean(tally.kept[way]) <= ours.keep_ratio + SPILL
    ]
    to_whole = tally.against(ours)
    found = dict(
        by=ours.by,
        method=ours.label,
        full=float(tally.of(None).mean()),
        ours=float(tally.of(ours).mean()),
        difference=to_whole['difference'],
        bound=to_whole['bound'],
        non_inferior=to_whole['bound'] > -MARGIN,
    )
    if not others:  # none keeps a tenth of prefixes this short, or none chooses as late
        return found | dict(best='', best_rate=0.0, to_best=0.0, low=0.0, high=0.0)
    best = max(others, key=lambda way: tally.of(way).sum())
    to_best = tally.against(ours, best)
    return found | dict(
        best=best.method,
        best_rate=float(tally.of(best).mean()),
        to_best=to_best['difference'],
        low=to_best['low'],
        high=to_best['high'],
    )


def pivot(rows: Sequence[dict], by: str) -> list[dict]:
    """Return a row per label and a column per keep ratio; a star marks that more was kept."""
    whole, shown = f'{100 * rows[0]["right"]["rate"]:.1f}', {}
    for r in rows[1:]:
        if (r['by'], r['p']) == (by, P):
            line = shown.setdefault(r['label'], dict(method=r['label']))
            star = '*' * (r['kept'] > r['keep_ratio'] + SPILL)
            line[f'{r["keep_ratio"]:.0%}'] = f'{100 * r["right"]["rate"]:.1f}{star}'
    return [line | {'100%': whole} for line in shown.values()]
