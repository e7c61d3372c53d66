"""Figures of judges: rates with intervals, the gate, the selected ways, and differences.

Knows right and wrong answers, by way and share. Does not know how an answer was computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.common.paired import paired
from benchmarks.memory.judge_batch import Replies
from benchmarks.memory.judge_ways import FULL, LEAST_FULL, LEAST_LOST, REUSE
from benchmarks.memory.reuse_variants import SCHEDULES
from training.evaluate.report import rate

FAMILIES = ('keep', 'cacheblend token', 'cacheblend segment')
PAPER = 'keep directed falling'
Key = tuple[float, str]  # share of memory in the later layers, way


@dataclass
class Asked:
    """The problems and the replies to them; all lists have the same order.

    right, kept, computed: by share and way. kept: share of the chain's tokens that layers beyond
    the first computed. computed: share of the prompt's tokens, over all layers.
    """

    judges: list[int] = field(default_factory=list)
    cells: list[tuple[int, str, int]] = field(default_factory=list)
    right: dict[Key, list[bool]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    computed: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, judge: int, cell: tuple, replies: Mapping[Key, Replies]) -> None:
        """Add the problems of a cell with one judge's replies, by share and way."""
        for key, reply in replies.items():
            self.right[key] += reply.right.tolist()
            self.kept[key] += reply.kept[:, 1:].mean(1).tolist()
            self.computed[key] += reply.computed.tolist()
        count = len(reply.right)
        self.judges += [judge] * count
        self.cells += [cell] * count

    @property
    def shares(self) -> list[float]:
        """Return the shares at which ways are compared: all but those of the bounds."""
        return [share for share in dict.fromkeys(s for s, _ in self.right) if 0 < share < 1]


def gate(asked: Asked) -> dict:
    """Return whether full recompute is right, and full reuse wrong, often enough."""
    full, reuse = (float(np.mean(asked.right[key])) for key in ((1.0, FULL), (0.0, REUSE)))
    holds = full >= LEAST_FULL and full - reuse >= LEAST_LOST
    return dict(full=100 * full, full_reuse=100 * reuse, n=len(asked.cells), holds=holds)


def chosen(asked: Asked) -> dict[str, str]:
    """Return the way of each family that is right most often over all shares; ties: the first."""
    shares = asked.shares
    names = list(dict.fromkeys(name for share, name in asked.right if share in shares))
    total = {name: sum(sum(asked.right[s, name]) for s in shares) for name in names}
    return {
        family: max((name for name in names if name.startswith(family)), key=total.__getitem__)
        for family in FAMILIES
    }


def differences(asked: Asked, chosen: Mapping[str, str], labels: Sequence[str]) -> list[dict]:
    """Compare the chosen KEEP, and the paper's, with other ways.

    These are the chosen CacheBlends, the CacheBlends of the same schedule, and KEEP without hops
    of the same schedule. labels: one for each problem; every label has a column.
    """
    pairs = [
        (keep, other)
        for keep in (chosen['keep'], PAPER)
        for other in (
            *(chosen[family] for family in FAMILIES[1:]),
            *(f'{family} {_schedule(keep)}' for family in FAMILIES[1:]),
            f'keep without hops {_schedule(keep)}',
        )
    ]
    rows = []
    for share in asked.shares:
        for keep, other in dict.fromkeys([*pairs, (chosen['keep'], PAPER)]):
            right, less = (np.asarray(asked.right[share, name]) for name in (keep, other))
            found = paired(right, less, np.arange(len(right)))
            rows.append(
                dict(share=share, keep=keep, other=other, difference=100 * found['difference'])
                | dict(least=100 * found['low'], most=100 * found['high'])
                | {
                    name: value - _by(less, labels)[name]
                    for name, value in _by(right, labels).items()
                }
            )
    return rows


def _schedule(way: str) -> str:
    return next(name for name in SCHEDULES if name in way.split())


def _by(right: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Return the rate (%) of right answers for each label."""
    labels = np.asarray(labels)
    return {str(name): 100 * float(right[labels == name].mean()) for name in np.unique(labels)}


def rates(asked: Asked, labels: Sequence[str]) -> list[dict]:
    """Return a row for each share and way. labels: of each problem; every label has a column."""
    rows = []
    for (share, name), said in asked.right.items():
        right = np.asarray(said)
        found = rate(int(right.sum()), len(right))
        rows.append(
            dict(share=share, way=name, right=100 * found['rate'])
            | dict(least=100 * found['low'], most=100 * found['high'], n=found['n'])
            | _by(right, labels)
            | dict(kept=100 * float(np.mean(asked.kept[share, name])))
            | dict(computed=100 * float(np.mean(asked.computed[share, name])))
        )
    return rows
