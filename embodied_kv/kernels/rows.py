"""Which rows of an arena a batch reads, and how a CPU can read them where they lie.

Knows row ids and lengths. Does not know who owns a row, or why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Neighbouring rows that equally many slots read: one strided view of the arena, no copy.

    mask: additive [rows, 1, queries, longest], None when every key of the view is visible.
    """

    rows: slice
    slots: slice
    longest: int
    mask: Tensor | None


@dataclass(frozen=True)
class Plan:
    """The runs of one layer.

    order: slots sorted by row (None: they are already); back: its inverse.
    """

    runs: tuple[Run, ...]
    order: Tensor | None
    back: Tensor | None


class RowBatch:
    """Slot b of a batch reads row `ids[b]`, of which `lengths[layer, ids[b]]` tokens are valid.

    Binding writes row ids and nothing else: no byte of a cache moves.

    lengths: int32 [layers, rows], the arena's own, host memory. tokens: query tokens per slot.
    causal: the query tokens are the last ones of the row, and token t sees what lies before it;
    otherwise every valid token is visible to every query.
    """

    def __init__(
        self,
        ids: Sequence[int],
        lengths: np.ndarray,
        device_lengths: Tensor,
        tokens: int = 1,
        causal: bool = False,
    ) -> None:
        self.rows = tuple(ids)
        self.tokens, self.causal = tokens, causal
        self.device_lengths = device_lengths
        self.ids = torch.tensor(self.rows, dtype=torch.int64, device=device_lengths.device)
        self._plans: list[Plan] | None = None
        # A snapshot [layers, slots]; one layer stands for all while they agree.
        taken = lengths[:, self.rows]
        self._lengths = taken[:1] if (taken == taken[:1]).all() else taken

    @classmethod
    def dense(cls, batch: int, length: int, tokens: int, device: torch.device) -> RowBatch:
        """Rows 0 .. batch-1 of an ordinary contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(range(batch), lengths, torch.from_numpy(lengths).to(device), tokens)

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self, layer: int) -> Plan:
        """How the twin walks this layer; layers of equal lengths share a plan."""
        if self._plans is None:
            queries = self.tokens if self.causal else 1
            self._plans = [
                make_plan(self.rows, tuple(valid), queries) for valid in self._lengths.tolist()
            ]
        return self._plans[min(layer, len(self._plans) - 1)]


@lru_cache(maxsize=256)
def make_plan(rows: tuple[int, ...], valid: tuple[int, ...], causal: int) -> Plan:
    """The runs of a batch; remembered, as a batch keeps its prefix rows from step to step.

    rows, valid: row and valid tokens of each slot. causal: how many of each slot's last tokens
    are queries that see only what lies before them (1: all see all).
    """
    order = sorted(range(len(rows)), key=rows.__getitem__)
    readers: dict[int, list[int]] = {}  # row -> its slots, rows ascending
    for slot in order:
        readers.setdefault(rows[slot], []).append(slot)
    runs, begin = [], 0
    # Within a run, row id minus rank and the number of readers stay the same.
    ranked = enumerate(readers.items())
    for (_, count), group in groupby(ranked, lambda e: (e[1][0] - e[0], len(e[1][1]))):
        members = [(row, valid[slots[0]]) for _, (row, slots) in group]
        slots = slice(begin, begin + count * len(members))
        lengths = [length for _, length in members]
        mask = _mask(lengths, causal, count if causal > 1 else 1)
        runs.append(Run(slice(members[0][0], members[-1][0] + 1), slots, max(lengths), mask))
        begin = slots.stop
    if order == list(range(len(rows))):
        return Plan(tuple(runs), None, None)
    return Plan(tuple(runs), torch.tensor(order), torch.tensor(order).argsort())


def _mask(valid: Sequence[int], causal: int, readers: int) -> Tensor | None:
    """Additive mask [rows, 1, readers * causal, longest]; None if all keys are visible."""
    longest = max(valid)
    if causal == 1 and min(valid) == longest:
        return None
    ends = np.tile(np.arange(causal)[::-1], readers)  # keys hidden at the end, per query
    limit = np.asarray(valid)[:, None] - ends  # [rows, queries]: keys that a query sees
    visible = np.arange(longest) < limit[:, :, None]
    return torch.from_numpy(np.where(visible, np.float32(0), np.float32('-inf')))[:, None]
