"""Which rows of an arena a batch reads, and how a CPU can read them where they lie.

Knows row ids, lengths and positions. Does not know who owns a row, or why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

PADDING = -1  # the row id of a slot that reads and writes nothing


@dataclass(frozen=True)
class RowRun:
    """Neighbouring rows that equally many slots read: one strided view of the arena, no copy.

    begin, longest: the tokens of the view. mask: additive [rows, 1, queries, longest], None when
    every key of the view is visible.
    """

    rows: slice
    slots: slice
    begin: int
    longest: int
    mask: Tensor | None


@dataclass(frozen=True)
class BatchPlan:
    """The runs of one layer.

    order: the slots that read, sorted by row (None: it is all of them, and they are already).
    """

    runs: tuple[RowRun, ...]
    order: Tensor | None


class RowBatch:
    """Slot b of a batch reads row `rows[b]`, of which `lengths[layer, rows[b]]` tokens are valid.

    Made once for a number of slots, then bound to rows again and again: `bind` writes row ids and
    positions into memory that never moves, and no byte of a cache. A slot that no row is bound to
    is padding: its result is zero, and it stores nothing.

    lengths: int32 [layers, rows], the arena's own, host memory. tokens: query tokens per slot.
    causal: the slots' tokens lie in their rows, and each sees what lies before it and itself;
    otherwise every valid token is visible to every query. offsets: int32 [layers, rows] where rows
    are pieces of one ragged axis of tokens: where each begins.
    """

    def __init__(
        self,
        slots: int,
        lengths: np.ndarray,
        device_lengths: Tensor,
        tokens: int = 1,
        causal: bool = False,
        offsets: np.ndarray | None = None,
        device_offsets: Tensor | None = None,
    ) -> None:
        self.slots, self.tokens, self.causal = slots, tokens, causal
        self.device_lengths, self.device_offsets = device_lengths, device_offsets
        self._lengths, self._offsets = lengths, offsets
        self._table = torch.zeros(3, slots, dtype=torch.int32, device=device_lengths.device)
        self.ids, self.starts, self.counts = self._table.unbind(0)
        self._bound: tuple[bytes | None, ...] = ()
        self._plans: dict[int, BatchPlan] = {}  # by layer, of what is bound
        self.bind(())

    def bind(
        self,
        rows: Sequence[int],
        starts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
    ) -> RowBatch:
        """From now on it is about these rows, at most `slots`, `PADDING` among them for none.

        starts: where each slot's first token lies in its row; its tokens are the row's last ones
        where not given. counts: how many of the slot's tokens are its own, the rest is padding;
        all where not given.
        """
        self.rows = tuple(rows)
        self.live = tuple(slot for slot, row in enumerate(self.rows) if row != PADDING)
        own = [self.tokens] * len(self.rows) if counts is None else counts
        first = self._lengths[0, self.rows] - np.asarray(own, np.int32)
        table = np.full((3, self.slots), ((PADDING,), (0,), (0,)), np.int32)
        table[:, : len(self.rows)] = self.rows, first if starts is None else starts, own
        table[1:, table[0] == PADDING] = 0
        self._table.copy_(torch.from_numpy(table))
        live = table[:, list(self.live)].tolist()
        self.spans = tuple(zip(self.live, *live, strict=True))  # slot, row, start, count
        # As they are now; the twin's plans are made when it asks for them.
        self._valid = self._taken(self._lengths)
        self._begins = None if self._offsets is None else self._taken(self._offsets)
        parts = table, self._valid, self._begins
        bound = tuple(None if part is None else part.tobytes() for part in parts)
        if bound != self._bound:  # a batch keeps its prefix rows from step to step
            self._bound, self._plans = bound, {}
        return self

    def _taken(self, table: np.ndarray) -> np.ndarray:
        """Of the live slots: [layers, live], or [1, live] where all layers agree."""
        taken = table[:, [self.rows[slot] for slot in self.live]]
        return taken[:1] if (taken == taken[:1]).all() else taken

    @classmethod
    def dense(cls, batch: int, length: int, tokens: int, device: torch.device) -> RowBatch:
        """Rows 0 .. batch-1 of an ordinary contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(batch, lengths, torch.from_numpy(lengths).to(device), tokens).bind(range(batch))

    @property
    def memory(self) -> dict[str, Tensor]:
        """What a kernel reads of it, by name; contiguous."""
        memory = {'table': self._table, 'lengths': self.device_lengths}
        return memory if self._offsets is None else memory | {'offsets': self.device_offsets}

    def plan(self, layer: int) -> BatchPlan:
        """How the twin walks this layer; layers of equal lengths and offsets share a plan."""
        begins = self._begins
        if len(self._valid) == 1 and (begins is None or len(begins) == 1):
            layer = 0
        if layer not in self._plans:
            valid = self._valid[min(layer, len(self._valid) - 1)]
            at = None if begins is None else tuple(begins[min(layer, len(begins) - 1)].tolist())
            self._plans[layer] = make_plan(
                tuple((slot, self.rows[slot]) for slot in self.live),
                tuple(valid.tolist()),
                at,
                tuple(start for _, _, start, _ in self.spans) if self.causal else None,
                self.tokens,
                self.slots,
            )
        return self._plans[layer]


def make_plan(
    live: tuple[tuple[int, int], ...],
    valid: tuple[int, ...],
    begins: tuple[int, ...] | None,
    starts: tuple[int, ...] | None,
    tokens: int,
    slots: int,
) -> BatchPlan:
    """The runs of a batch.

    live: (slot, row) of the slots that read; of each of them: valid: tokens of its row; begins:
    where the row begins on a ragged axis, None if each row has an axis of its own; starts: where
    its first query lies in its row, if it sees only what lies before it, else None.
    """
    order = sorted(range(len(live)), key=lambda i: live[i][1])
    readers: dict[int, list[int]] = {}  # row -> its readers, rows ascending
    for i in order:
        readers.setdefault(live[i][1], []).append(i)
    runs, done = [], 0
    for members in _neighbours(readers) if begins is None else [[m] for m in readers.items()]:
        limits = np.array([[valid[own[0]]] for _, own in members])  # keys that a query sees
        if starts is not None:
            first = np.array([[starts[i] for i in own] for _, own in members])
            seen = first[:, :, None] + np.arange(1, tokens + 1)
            limits = np.minimum(seen.reshape(len(members), -1), limits)
        longest = int(limits.max())
        if begins is None:
            rows, begin = slice(members[0][0], members[-1][0] + 1), 0
        else:
            rows, begin = slice(1), begins[members[0][1][0]]
        read = slice(done, done + sum(len(own) for _, own in members))
        runs.append(RowRun(rows, read, begin, longest, _mask(limits, longest)))
        done = read.stop
    by_row = [live[i][0] for i in order]
    inorder = by_row == list(range(slots))
    return BatchPlan(tuple(runs), None if inorder else torch.tensor(by_row, dtype=torch.int64))


def _neighbours(readers: dict[int, list[int]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Rows side by side with equally many readers, with these."""
    # Within a run, row id minus rank and the number of readers stay the same.
    ranked = enumerate(readers.items())
    for _, group in groupby(ranked, lambda e: (e[1][0] - e[0], len(e[1][1]))):
        yield [member for _, member in group]


def _mask(limits: np.ndarray, longest: int) -> Tensor | None:
    """Additive mask [rows, 1, queries, longest]; None if all keys are visible.

    limits: keys that each query sees, [rows, queries]; one column stands for all.
    """
    if limits.min() == longest:
        return None
    hidden = np.arange(longest, dtype=np.int32) >= limits[:, :, None].astype(np.int32)
    mask = np.zeros(hidden.shape, np.float32)
    np.copyto(mask, -np.inf, where=hidden)
    return torch.from_numpy(mask)[:, None]
