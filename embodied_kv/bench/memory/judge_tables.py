"""Figures of the judge: rates with intervals, the gate, what development chooses, differences.

Knows right and wrong, by way and share. Does not know how an answer came about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from embodied_kv.bench.common.paired import paired
from embodied_kv.bench.memory.judge_batch import Replies
from embodied_kv.bench.memory.judge_ways import FULL, LEAST_FULL, LEAST_LOST, REUSE, SHARES
from embodied_kv.memory.schedule import SCHEDULES
from embodied_kv.train.evaluate.report import rate
from embodied_kv.train.judge.chains import LAYOUTS

FAMILIES = ('keep', 'cacheblend token', 'cacheblend segment')
PAPER = 'keep directed falling'
Key = tuple[float, str]  # share of memory in the later layers, way


@dataclass
class Asked:
    """What was asked and said; lists in step. right, kept, computed: by share and way.

    kept: of the chain's tokens, share that layers beyond the first computed. computed: of the
    prompt's tokens in all layers.
    """

    judges: list[int] = field(default_factory=list)
    cells: list[tuple[int, str, int]] = field(default_factory=list)
    right: dict[Key, list[bool]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    computed: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, judge: int, cell: tuple, replies: Mapping[Key, Replies]) -> None:
        """The problems of a cell, one judge's replies by share and way."""
        for key, reply in replies.items():
            self.right[key] += reply.right.tolist()
            self.kept[key] += reply.kept[:, 1:].mean(1).tolist()
            self.computed[key] += reply.computed.tolist()
        count = len(reply.right)
        self.judges += [judge] * count
        self.cells += [cell] * count

    def where(self, layout: str) -> np.ndarray:
        """Which problems are laid out so, bool."""
        return np.array([cell[1] == layout for cell in self.cells])


def gate(asked: Asked) -> dict:
    """Whether full recompute is right and full reuse is not, often enough to compare ways."""
    full, reuse = (float(np.mean(asked.right[key])) for key in ((1.0, FULL), (0.0, REUSE)))
    holds = full >= LEAST_FULL and full - reuse >= LEAST_LOST
    return dict(full=100 * full, full_reuse=100 * reuse, n=len(asked.cells), holds=holds)


def chosen(asked: Asked) -> dict[str, str]:
    """Of each family the way that is right most often over all shares; the first of equals."""
    names = list(dict.fromkeys(name for share, name in asked.right if share in SHARES))
    total = {name: sum(sum(asked.right[s, name]) for s in SHARES) for name in names}
    return {
        family: max((name for name in names if name.startswith(family)), key=total.__getitem__)
        for family in FAMILIES
    }


def differences(asked: Asked, chosen: Mapping[str, str]) -> list[dict]:
    """The chosen KEEP, and the paper's, less what each is compared with.

    That is the chosen CacheBlends, those of its own schedule, and its own without hops.
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
    for share in SHARES:
        for keep, other in dict.fromkeys([*pairs, (chosen['keep'], PAPER)]):
            right, less = (np.asarray(asked.right[share, name]) for name in (keep, other))
            found = paired(right, less, np.arange(len(right)))
            rows.append(
                dict(share=share, keep=keep, other=other, difference=100 * found['difference'])
                | dict(least=100 * found['low'], most=100 * found['high'])
                | {f'judge_{j}': _of_judge(asked, right, less, j) for j in sorted({*asked.judges})}
            )
    return rows


def _schedule(way: str) -> str:
    return next(name for name in SCHEDULES if name in way.split())


def _of_judge(asked: Asked, right: np.ndarray, less: np.ndarray, judge: int) -> float:
    mine = np.asarray(asked.judges) == judge
    return 100 * float(right[mine].mean() - less[mine].mean())


def rates(asked: Asked) -> list[dict]:
    """A row per share and way."""
    rows = []
    for (share, name), said in asked.right.items():
        right = np.asarray(said)
        found = rate(int(right.sum()), len(right))
        rows.append(
            dict(share=share, way=name, right=100 * found['rate'])
            | dict(least=100 * found['low'], most=100 * found['high'], n=found['n'])
            | {layout: 100 * float(right[asked.where(layout)].mean()) for layout in LAYOUTS}
            | dict(kept=100 * float(np.mean(asked.kept[share, name])))
            | dict(computed=100 * float(np.mean(asked.computed[share, name])))
        )
    return rows
