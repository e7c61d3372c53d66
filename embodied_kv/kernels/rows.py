"""Which rows of an arena a batch reads, and how a CPU can read them where they lie.

Knows row ids, lengths and places. Does not know who owns a row, or why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

PADDING = -1  # the row id of a slot that reads and writes nothing


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
    """Slot b of a batch reads row `rows[b]`, of which `lengths[layer, rows[b]]` tokens are valid.

    Made once for a number of slots, then bound to rows again and again: `bind` writes row ids and
    places into memory that never moves, and no byte of a cache. Slots that no row is bound to are
    padding: they come last, their result is zero, and they store nothing.

    lengths: int32 [layers, rows], the arena's own, host memory. tokens: query tokens per slot.
    causal: the slots' tokens lie in their rows, and each sees what lies before it and itself;
    otherwise every valid token is visible to every query.
    """

    def __init__(
        self,
        slots: int,
        lengths: np.ndarray,
        device_lengths: Tensor,
        tokens: int = 1,
        causal: bool = False,
    ) -> None:
        self.slots, self.tokens, self.causal = slots, tokens, causal
        self.device_lengths = device_lengths
        self._lengths = lengths
        self._places = torch.zeros(3, slots, dtype=torch.int32, device=device_lengths.device)
        self.ids, self.starts, self.counts = self._places.unbind(0)
        self.bind(())

    def bind(
        self,
        rows: Sequence[int],
        starts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
    ) -> RowBatch:
        """From now on it is about these rows, at most `slots` of them, as long as they are now.

        starts: where each slot's first token lies in its row; its tokens are the row's last ones
        where not given. counts: how many of the slot's tokens are its own, the rest is padding;
        all where not given.
        """
        self.rows = tuple(rows)
        taken = self._lengths[:, self.rows]  # a snapshot [layers, slots]
        # One layer stands for all while they agree.
        self._valid = taken[:1] if (taken == taken[:1]).all() else taken
        own = [self.tokens] * len(self.rows) if counts is None else counts
        first = taken[0] - np.asarray(own, np.int32) if starts is None else starts
        places = np.full((3, self.slots), ((PADDING,), (0,), (0,)), np.int32)
        places[:, : len(self.rows)] = self.rows, first, own
        self._places.copy_(torch.from_numpy(places))
        self.places = tuple(zip(self.rows, map(int, first), map(int, own), strict=True))
        self._plans: list[Plan] | None = None
        return self

    @classmethod
    def dense(cls, batch: int, length: int, tokens: int, device: torch.device) -> RowBatch:
        """Rows 0 .. batch-1 of an ordinary contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(batch, lengths, torch.from_numpy(lengths).to(device), tokens).bind(range(batch))

    def __len__(self) -> int:
        """Slots that a row is bound to."""
        return len(self.rows)

    @property
    def memory(self) -> dict[str, Tensor]:
        """What a kernel reads of it, by name; contiguous."""
        return {'places': self._places, 'lengths': self.device_lengths}

    def plan(self, layer: int) -> Plan:
        """How the twin walks this layer; layers of equal lengths share a plan."""
        if self._plans is None:
            starts = tuple(start for _, start, _ in self.places)
            first = starts if self.causal and self.tokens > 1 else None
            self._plans = [
                make_plan(self.rows, tuple(valid), first, self.tokens)
                for valid in self._valid.tolist()
            ]
        return self._plans[min(layer, len(self._plans) - 1)]


@lru_cache(maxsize=256)
def make_plan(
    rows: tuple[int, ...], valid: tuple[int, ...], starts: tuple[int, ...] | None, tokens: int
) -> Plan:
    """The runs of a batch; remembered, as a batch keeps its prefix rows from step to step.

    rows, valid: row and valid tokens of each slot. starts: where each slot's first query lies in
    its row, if it sees only what lies before it; None if all queries see all valid tokens.
    """
    order = sorted(range(len(rows)), key=rows.__getitem__)
    readers: dict[int, list[int]] = {}  # row -> its slots, rows ascending
    for slot in order:
        readers.setdefault(rows[slot], []).append(slot)
    runs, begin = [], 0
    # Within a run, row id minus rank and the number of readers stay the same.
    ranked = enumerate(readers.items())
    for (_, count), group in groupby(ranked, lambda e: (e[1][0] - e[0], len(e[1][1]))):
        members = [(row, slots) for _, (row, slots) in group]
        slots = slice(begin, begin + count * len(members))
        limits = np.array([[valid[own[0]]] for _, own in members])  # keys that a query sees
        longest = int(limits.max())
        if starts is not None:
            first = np.array([[starts[slot] for slot in own] for _, own in members])
            seen = first[:, :, None] + np.arange(1, tokens + 1)
            limits = np.minimum(seen.reshape(len(members), -1), limits)
        rows_read = slice(members[0][0], members[-1][0] + 1)
        runs.append(Run(rows_read, slots, longest, _mask(limits, longest)))
        begin = slots.stop
    if order == list(range(len(rows))):
        return Plan(tuple(runs), None, None)
    return Plan(tuple(runs), torch.tensor(order), torch.tensor(order).argsort())


def _mask(limits: np.ndarray, longest: int) -> Tensor | None:
    """Additive mask [rows, 1, queries, longest]; None if all keys are visible.

    limits: keys that each query sees, [rows, queries]; one column stands for all.
    """
    if limits.min() == longest:
        return None
    visible = np.arange(longest) < limits[:, :, None]
    return torch.from_numpy(np.where(visible, np.float32(0), np.float32('-inf')))[:, None]
