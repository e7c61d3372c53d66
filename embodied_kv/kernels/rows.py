"""Which rows of an arena a batch reads, and how a CPU can read them where they lie.

Knows row ids, lengths and positions. Does not know who owns a row, or why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

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


@dataclass(frozen=True, eq=False)
class _Bound:
    """What the bytes of a table say; plans: of the layers that were asked for."""

    table: bytes
    spans: tuple[tuple[int, int, int, int], ...]
    plans: dict[int, BatchPlan] = field(default_factory=dict)


class RowBatch:
    """Slot b of a batch reads row `ids[b]`, of which `lengths[layer, b]` tokens are valid.

    Made once for a number of slots, then bound to rows again and again: `bind` writes row ids,
    positions and lengths into memory that never moves, and no byte of a cache. A slot that no row
    is bound to is padding: its result is zero, and it stores nothing.

    lengths: int32 [layers, rows], the arena's own, host memory; [1, rows] where all layers agree.
    tokens: query tokens per slot. causal: the slots' tokens lie in their rows, and each sees what
    lies before it and itself; otherwise every valid token is visible to every query. offsets:
    int32 [layers, rows] where rows are pieces of one ragged axis of tokens: where each begins.
    table: its memory as the host writes it and as the device reads it, int32 of `size`, one and
    the same on a CPU; whoever gave it sends it. Without, it has its own, and `bind` sends.

    The table is what counts, whoever wrote it: a step may move starts and lengths on.
    """

    def __init__(
        self,
        slots: int,
        lengths: np.ndarray,
        tokens: int = 1,
        causal: bool = False,
        offsets: np.ndarray | None = None,
        *,
        device: str | torch.device = 'cpu',
        table: tuple[np.ndarray, Tensor] | None = None,
    ) -> None:
        self.slots, self.tokens, self.causal = slots, tokens, causal
        self._lengths, self._offsets, self._is_own = lengths, offsets, table is None
        if table is None:
            host = np.zeros(self.size(slots, lengths, offsets), np.int32)
            table = host, torch.from_numpy(host).to(device)
        self._host, self.table = table
        self.ids, self.starts, self.counts = self.table[:3].unbind(0)
        self.lengths = self.table[3 : 3 + len(lengths)]
        self.offsets = None if offsets is None else self.table[3 + len(lengths) :]
        self._bound: _Bound | None = None
        self.bind(())

    @staticmethod
    def size(
        slots: int, lengths: np.ndarray, offsets: np.ndarray | None = None
    ) -> tuple[int, int]:
        """Of a table: ids, starts, counts, then lengths and offsets by layer; by slots."""
        return 3 + len(lengths) * (1 if offsets is None else 2), slots

    def bind(
        self,
        rows: Sequence[int],
        starts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
    ) -> RowBatch:
        """From now on it is about these rows, at most `slots`, `PADDING` among them for none.

        starts: where each slot's first token lies in its row; its tokens are the row's last ones
        where not given. counts: how many of the slot's tokens are its own, the rest is padding;
        all where not given. Lengths and offsets are those of now.
        """
        rows = np.asarray(rows, np.int64).reshape(-1)
        own = self.tokens if counts is None else counts
        table = np.zeros((len(self._host), len(rows)), np.int32)
        table[0], table[2], table[3:] = rows, own, self._known_of(rows)
        table[1] = table[3] - table[2] if starts is None else starts
        table[1:, rows == PADDING] = 0
        self._host[:, : len(rows)] = table
        self._host[0, len(rows) :], self._host[1:, len(rows) :] = PADDING, 0
        if self._is_own and self.table.is_cuda:
            self.table.copy_(torch.from_numpy(self._host))
        return self

    def _known_of(self, rows: np.ndarray) -> np.ndarray:
        """Lengths, then offsets, of these rows."""
        parts = (self._lengths,) if self._offsets is None else (self._lengths, self._offsets)
        return np.concatenate([part[:, rows] for part in parts])

    @classmethod
    def dense(cls, batch: int, length: int, tokens: int, device: torch.device) -> RowBatch:
        """Rows 0 .. batch-1 of an ordinary contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(batch, lengths, tokens, device=device).bind(range(batch))

    @property
    def live(self) -> tuple[int, ...]:
        """The slots that read."""
        return tuple(slot for slot, _, _, _ in self._now().spans)

    @property
    def spans(self) -> tuple[tuple[int, int, int, int], ...]:
        """Slot, row, start and count of each slot that reads."""
        return self._now().spans

    def _now(self) -> _Bound:
        """What the table says now; plans are kept as long as it says the same."""
        table = self._host.tobytes()
        if self._bound is None or table != self._bound.table:
            slots = zip(range(self.slots), *self._host[:3].tolist(), strict=True)
            self._bound = _Bound(table, tuple(slot for slot in slots if slot[1] != PADDING))
        return self._bound

    def plan(self, layer: int) -> BatchPlan:
        """How the twin walks this layer; layers of equal lengths and offsets share a plan."""
        now = self._now()
        if layer not in now.plans:
            now.plans[layer] = self._plan(layer, now)
        return now.plans[layer]

    def _plan(self, layer: int, now: _Bound) -> BatchPlan:
        layers = len(self._lengths)
        known = self._host[3:, list(self.live)]
        if layer and bool((known == known[::layers].repeat(layers, 0)).all()):
            return self.plan(0)
        begins = None if self._offsets is None else tuple(known[layers + layer].tolist())
        return make_plan(
            tuple((slot, row) for slot, row, _, _ in now.spans),
            tuple(known[layer].tolist()),
            begins,
            tuple(start for _, _, start, _ in now.spans) if self.causal else None,
            self.tokens,
            self.slots,
        )


class Segment(NamedTuple):
    """Keys that a slot reads: k, v [rows, kv_heads, max_tokens, head_dim], of them its row."""

    k: Tensor
    v: Tensor
    batch: RowBatch


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
