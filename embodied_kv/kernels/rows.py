"""The rows of an arena that a batch reads, and plans by which a CPU reads them in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = -1  # the row id of a slot that reads and writes nothing


@dataclass(frozen=True)
class RowRun:
    """Adjacent rows, each read by the same number of slots: one strided view of the arena.

    begin, longest: the tokens of the view. mask: additive [rows, 1, queries, longest]; None if
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

    order: the slots that read, sorted by row; None if all slots read and are sorted.
    """

    runs: tuple[RowRun, ...]
    order: Tensor | None


@dataclass(frozen=True, eq=False)
class _Bound:
    """The contents of a table. plans, places: computed on demand."""

    table: bytes
    spans: tuple[tuple[int, int, int, int], ...]
    live: tuple[int, ...]
    plans: dict[int, BatchPlan] = field(default_factory=dict)
    places: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)


class RowBatch:
    """Slot b of a batch reads row `ids[b]`, of which `lengths[layer, b]` tokens are valid.

    A batch is made once for a number of slots, then bound to rows again and again: `bind` writes
    row ids, positions and lengths into memory that never moves, and no byte of a cache. A slot
    without a row is padding: its result is zero, and it stores nothing. A step may change the
    table; plans follow it.

    lengths: int32 [layers, rows], the arena's own, in host memory; [1, rows] if all layers agree.
    tokens: query tokens per slot. causal: the slots' tokens lie in their rows, and each sees what
    precedes it, and itself; otherwise every valid token is visible to every query. offsets: int32
    [layers, rows], begins of rows that are pieces of one ragged axis of tokens. capacity: tokens
    of such a piece that compiled code reads. table: host and device memory of the table, int32 of
    `size`, the same on a CPU; the caller sends it. By default the batch has its own, which `bind`
    sends.
    """

    def __init__(
        self,
        slots: int,
        lengths: np.ndarray,
        tokens: int = 1,
        causal: bool = False,
        offsets: np.ndarray | None = None,
        *,
        capacity: int = 0,
        device: str | torch.device = 'cpu',
        table: tuple[np.ndarray, Tensor] | None = None,
    ) -> None:
        self.slots, self.tokens, self.causal, self.capacity = slots, tokens, causal, capacity
        self._lengths, self._offsets, self._is_own = lengths, offsets, table is None
        if table is None:
            host = np.zeros(self.size(slots, lengths, offsets), np.int32)
            table = host, torch.from_numpy(host).to(device)
        self._host: np.ndarray
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
        """Return the shape of a table: ids, starts, counts, then lengths and offsets by layer."""
        return 3 + len(lengths) * (1 if offsets is None else 2), slots

    def bind(
        self,
        rows: Sequence[int] | NDArray[np.int64],
        starts: Sequence[int] | NDArray[np.int64] | None = None,
        counts: Sequence[int] | NDArray[np.int64] | int | None = None,
    ) -> RowBatch:
        """Bind the first slots to rows; `PADDING` leaves a slot without a row.

        starts: place of each slot's first token in its row; by default its tokens are the last of
        the row. counts: number of the slot's own tokens, the rest is padding; one number for all
        slots, by default all tokens. Lengths and offsets are read now.
        """
        ids, host = np.asarray(rows, np.int64).reshape(-1), self._host
        bound = host[:, : len(ids)]
        if len(ids) < self.slots:
            host[0, len(ids) :], host[1:, len(ids) :] = PADDING, 0
        if len(ids):
            bound[0], bound[2] = ids, self.tokens if counts is None else counts
            layers = len(self._lengths)
            bound[3 : 3 + layers] = self._lengths[:, ids]
            if self._offsets is not None:
                bound[3 + layers :] = self._offsets[:, ids]
            bound[1] = bound[3] - bound[2] if starts is None else starts
            if ids.min() == PADDING:
                bound[1:, ids == PADDING] = 0
        if self._is_own and self.table.is_cuda:
            self.table.copy_(torch.from_numpy(host))
        return self

    @classmethod
    def dense(
        cls,
        batch: int,
        length: int,
        tokens: int,
        device: torch.device,
        causal: bool = False,
    ) -> RowBatch:
        """Return a batch over rows 0 .. batch - 1 of a contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(batch, lengths, tokens, causal, device=device).bind(range(batch))

    @property
    def live(self) -> tuple[int, ...]:
        """Return the slots that read."""
        return self._now().live

    @property
    def spans(self) -> tuple[tuple[int, int, int, int], ...]:
        """Return slot, row, start and count of each slot that reads."""
        return self._now().spans

    def _now(self) -> _Bound:
        table = self._host.tobytes()
        if self._bound is None or table != self._bound.table:
            slots = zip(range(self.slots), *self._host[:3].tolist(), strict=True)
            spans = tuple(slot for slot in slots if slot[1] != PADDING)
            self._bound = _Bound(table, spans, tuple(slot for slot, _, _, _ in spans))
        return self._bound

    def places(self, kv_heads: int, most: int) -> Tensor | None:
        """Return the place of each slot's one token if rows of `most` tokens are one axis.

        int64 [slots that read * kv_heads], by row, then KV head. None unless the slots that read
        are the first ones, and each has exactly one token, for which its row has room.
        """
        now, size = self._now(), (kv_heads, most)  # plans are kept while the table is the same
        if size not in now.places:
            now.places[size] = self._places(len(now.live), *size) if self.tokens == 1 else None
        return now.places[size]

    def _places(self, live: int, kv_heads: int, most: int) -> Tensor | None:
        ids, starts, counts = self._host[:3, :live].astype(np.int64)
        fits = (ids != PADDING) & (starts >= 0) & (starts < most) & (counts == 1)
        if not fits.all():
            return None
        heads = ids[:, None] * kv_heads + np.arange(kv_heads)
        return torch.from_numpy((heads * most + starts[:, None]).reshape(-1))

    def plan(self, layer: int) -> BatchPlan:
        """Return the plan of a layer; layers of equal lengths and offsets share one."""
        now, layer = self._now(), min(layer, len(self._lengths) - 1)
        if layer not in now.plans:
            now.plans[layer] = self._plan(layer, now)
        return now.plans[layer]

    def _plan(self, layer: int, now: _Bound) -> BatchPlan:
        layers = len(self._lengths)
        known = self._host[3:, list(now.live)]
        if layer and bool((known == known[::layers].repeat(layers, 0)).all()):
            return self.plan(0)
        valid = known[layer].tolist()
        begins = None if self._offsets is None else known[layers + layer].tolist()
        order = sorted(range(len(now.spans)), key=lambda i: now.spans[i][1])
        readers: dict[int, list[int]] = {}  # row -> its readers, rows ascending
        for i in order:
            readers.setdefault(now.spans[i][1], []).append(i)
        runs, done = [], 0
        for members in _neighbours(readers) if begins is None else [[m] for m in readers.items()]:
            limits = np.array([[valid[own[0]]] for _, own in members])  # keys that a query sees
            if self.causal:
                first = np.array([[now.spans[i][2] for i in own] for _, own in members])
                seen = first[:, :, None] + np.arange(1, self.tokens + 1)
                limits = np.minimum(seen.reshape(len(members), -1), limits)
            longest = int(limits.max())
            if begins is None:
                rows, begin = slice(members[0][0], members[-1][0] + 1), 0
            else:
                rows, begin = slice(1), begins[members[0][1][0]]
            read = slice(done, done + sum(len(own) for _, own in members))
            runs.append(RowRun(rows, read, begin, longest, _mask(limits, longest)))
            done = read.stop
        by_row = [now.live[i] for i in order]
        in_order = by_row == list(range(self.slots))
        return BatchPlan(
            tuple(runs), None if in_order else torch.tensor(by_row, dtype=torch.int64)
        )


class Segment(NamedTuple):
    """Keys and values that a batch reads: k, v [rows, kv_heads, max_tokens, head_dim]."""

    k: Tensor
    v: Tensor
    batch: RowBatch


def _neighbours(readers: dict[int, list[int]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Yield groups of adjacent rows with equally many readers, and these readers."""
    # Within a run, row id minus rank and the number of readers stay the same.
    ranked = enumerate(readers.items())
    for _, group in groupby(ranked, lambda e: (e[1][0] - e[0], len(e[1][1]))):
        yield [member for _, member in group]


def _mask(limits: np.ndarray, longest: int) -> Tensor | None:
    """Return an additive mask [rows, 1, queries, longest]; None if all keys are visible.

    limits: number of keys that each query sees, [rows, queries]; one column stands for all.
    """
    if limits.min() == longest:
        return None
    hidden = np.arange(longest, dtype=np.int32) >= limits[:, :, None].astype(np.int32)
    mask = np.zeros(hidden.shape, np.float32)
    np.copyto(mask, -np.inf, where=hidden)
    return torch.from_numpy(mask)[:, None]
