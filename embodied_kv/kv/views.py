"""Views of the cache for transformer layers: `attend(layer, q, k, v)` stores k and v, and reads.

Three views use the same rows: `PrefixWrite` writes a prefix, `SuffixRead` reads it under a suffix
that is not stored, `TailAppend` reads it under decode KV that grows. Two more are for a model
without prefix rows: `DecodeView` appends a token to the row of each slot, and `SparsePositionView`
computes tokens at any positions of one row, whose other tokens are loaded. `store` alone is for a
last layer whose output is not needed.

A view is made once for a number of slots and tokens and bound to rows repeatedly; slots without a
row are padding. The bound rows are fields of a step's inputs, which `bind` sends, so other fields
are written before. q: [slots, tokens, heads, head_dim]; k, v: [slots, tokens, kv_heads, head_dim];
the result is like q.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.kernels.attention import prefix_attention, row_attention, segments_attention
from embodied_kv.kernels.rows import RowBatch, Segment
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.handle import Lease
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import Fields, StepInputs


class KvView(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None: ...


class PrefixRead:
    """The prefix that each slot reads: a prefix row, or a compressed copy of one.

    flats: None if nothing is compressed. capacity: tokens of each layer of a copy that compiled
    code reads; 0: it reads none. fits_compiled: whether it can read what is bound.
    """

    def __init__(
        self,
        prefixes: Arena,
        flats: CompressedArena | None,
        slots: int,
        tokens: int,
        inputs: StepInputs,
        capacity: int = 0,
    ) -> None:
        self.fits_compiled, self._capacity = True, capacity
        whole = batch_over(inputs, 'prefix', slots, prefixes.lengths, tokens)
        self._parts: list[tuple[Arena | CompressedArena, RowBatch]] = [(prefixes, whole)]
        if flats is not None:
            tables = flats.lengths, tokens, False, flats.offsets, capacity
            self._parts.append((flats, batch_over(inputs, 'flat', slots, *tables)))

    @staticmethod
    def fields(prefixes: Arena, flats: CompressedArena | None, slots: int) -> Fields:
        """Return the input fields that it needs."""
        found = table_field('prefix', slots, prefixes.lengths)
        if flats is not None:
            found |= table_field('flat', slots, flats.lengths, flats.offsets)
        return found

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> np.ndarray:
        """Bind the first slots, and return the logical position after each prefix, int64.

        rows, flats: prefix row and compressed row of each slot, one of them -1.
        """
        after = np.zeros(len(rows), np.int64)
        self.fits_compiled = True
        for (arena, batch), bound in zip(self._parts, (rows, flats), strict=False):
            if max(bound, default=-1) < 0:
                batch.bind(())
                continue
            taken = np.array(bound, np.int64)
            batch.bind(taken)
            after += np.where(taken < 0, 0, arena.positions[taken])
            if isinstance(arena, CompressedArena):
                longest = arena.lengths[:, taken[taken >= 0]].max()
                self.fits_compiled = bool(longest <= self._capacity)
        return after

    @property
    def whole(self) -> RowBatch:
        """Return the batch of the slots that read a prefix row."""
        return self._parts[0][1]

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to K and V."""
        names = 'prefix.table', 'flat.table'
        return [Buffer(n, batch.table) for n, (_, batch) in zip(names, self._parts, strict=False)]

    def attend(self, layer: int, q: Tensor, own: Segment) -> Tensor:
        """Return `segments_attention` over the prefix and the slots' own tokens."""
        return segments_attention(q, (*self._segments(layer), own), layer)

    def attend_alone(self, layer: int, q: Tensor) -> Tensor:
        """Return `prefix_attention`."""
        return prefix_attention(q, self._segments(layer), layer)

    def _segments(self, layer: int) -> list[Segment]:
        return [Segment(*arena.layers[layer], batch) for arena, batch in self._parts]


def rows_read(leases: Sequence[Lease]) -> tuple[list[int], list[int]]:
    """Return the prefix row and the compressed row of each lease, one of them -1, for `bind`."""
    rows = [-1 if lease.is_copy else lease.row for lease in leases]
    copies = [lease.row if lease.is_copy else -1 for lease in leases]
    return rows, copies


def table_field(
    name: str, slots: int, lengths: np.ndarray, offsets: np.ndarray | None = None
) -> dict[str, tuple[int, type[np.generic]]]:
    """Return the field of the table of a batch of rows."""
    return {name: (prod(RowBatch.size(slots, lengths, offsets)), np.int32)}


def batch_over(
    inputs: StepInputs,
    name: str,
    slots: int,
    lengths: np.ndarray,
    tokens: int,
    causal: bool = False,
    offsets: np.ndarray | None = None,
    capacity: int = 0,
) -> RowBatch:
    """Return a batch of rows whose table is a field of the inputs."""
    own = inputs.cut(name, *RowBatch.size(slots, lengths, offsets))
    table = own.host, own.device
    return RowBatch(slots, lengths, tokens, causal, offsets, capacity=capacity, table=table)


def place(positions: np.ndarray, starts: np.ndarray) -> None:
    """Write consecutive positions: slot b begins at starts[b], padding at 0."""
    positions[:] = np.arange(positions.shape[1])
    positions[: len(starts)] += starts[:, None]


class PrefixWrite:
    """Writes each slot's tokens into its prefix row; every valid token sees every other one.

    Tokens behind a slot's valid ones are neither stored nor seen. inputs: with `fields`.
    """

    fits_compiled = True
    table = 'prefix'  # the field of its rows

    def __init__(
        self, arena: Arena, slots: int, tokens: int, inputs: StepInputs | None = None
    ) -> None:
        self._arena, self.slots, self.tokens = arena, slots, tokens
        # Its own lengths: the arena has none yet for a row that is being written.
        self._lengths = np.zeros((1, arena.rows), np.int32)
        self.inputs = inputs or StepInputs(arena.device, self.fields(arena, slots))
        self._batch = batch_over(self.inputs, self.table, slots, self._lengths, tokens)

    @staticmethod
    def fields(arena: Arena, slots: int) -> Fields:
        """Return the input fields that it needs."""
        return table_field('prefix', slots, arena.lengths)

    def bind(self, rows: Sequence[int], lengths: Sequence[int]) -> PrefixWrite:
        """Bind the first slots. rows: reserved rows. lengths: valid tokens of each slot."""
        self._lengths[0, list(rows)] = lengths
        self._batch.bind(rows, starts=[0] * len(rows), counts=lengths)
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arena."""
        return [Buffer('prefix.table', self._batch.table)]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store k and v in any layer of the rows, without attention."""
        store_rows(k, v, *self._arena.layers[layer], self._batch)

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.write(layer, k, v)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        own = Segment(*self._arena.layers[layer], self._batch)
        return segments_attention(q, (own,), layer)


class PrefixAppend(PrefixWrite):
    """Appends one token to each slot's prefix; the token reads the whole prefix and itself.

    positions: int64 [slots, 1], logical. inputs: with `fields`.
    """

    fits_compiled = False
    table = 'appended'

    def __init__(self, arena: Arena, slots: int, inputs: StepInputs | None = None) -> None:
        super().__init__(arena, slots, 1, inputs)
        self._positions = self.inputs.cut('appended_position', slots, 1)
        self.positions = self._positions.device

    @staticmethod
    def fields(arena: Arena, slots: int) -> Fields:
        """Return the input fields that it needs."""
        return table_field('appended', slots, arena.lengths) | {
            'appended_position': (slots, np.int64)
        }

    def bind(self, rows: Sequence[int], lengths: Sequence[int]) -> PrefixAppend:
        """Bind the first slots. lengths: tokens of each prefix before the appended one."""
        self.prepare(rows, lengths)
        self.inputs.send()
        return self

    def prepare(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Bind without sending, because another view of the same inputs sends them."""
        starts = np.asarray(lengths, np.int64)
        self._lengths[0, list(rows)] = starts + 1
        self._batch.bind(rows, starts=starts, counts=1)
        place(self._positions.host, starts)

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arena."""
        return [
            Buffer('appended.table', self._batch.table),
            Buffer('appended.position', self.positions),
        ]


class SuffixRead:
    """Reads each slot's whole prefix, and the suffix itself; it stores nothing.

    tokens: length of the suffix (the action horizon). positions: int64 [slots, tokens], logical.
    is_causal: a token of the suffix does not see later ones. inputs: with `fields`. capacity: as
    for `PrefixRead`.
    """

    def __init__(
        self,
        prefixes: Arena,
        slots: int,
        tokens: int,
        flats: CompressedArena | None = None,
        inputs: StepInputs | None = None,
        is_causal: bool = False,
        capacity: int = 0,
    ) -> None:
        if inputs is None:
            fields = SuffixRead.fields(prefixes, slots, tokens, flats)
            inputs = StepInputs(prefixes.device, fields)
        self.inputs = inputs
        self._prefix = PrefixRead(prefixes, flats, slots, tokens, self.inputs, capacity)
        self._suffix = RowBatch.dense(slots, tokens, tokens, prefixes.device, is_causal)
        self._positions = self.inputs.cut('positions', slots, tokens)
        self.positions = self._positions.device

    @staticmethod
    def fields(
        prefixes: Arena, slots: int, tokens: int, flats: CompressedArena | None = None
    ) -> Fields:
        """Return the input fields that it needs."""
        positions = {'positions': (slots * tokens, np.int64)}
        return {**PrefixRead.fields(prefixes, flats, slots), **positions}

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> SuffixRead:
        """Bind the first slots. rows, flats: prefix and compressed row of each, one of them -1."""
        place(self._positions.host, self._prefix.bind(rows, flats))
        self.inputs.send()
        return self

    @property
    def fits_compiled(self) -> bool:
        """Return whether compiled code can read what is bound."""
        return self._prefix.fits_compiled

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arenas; the suffix's places are constant."""
        return [*self._prefix.buffers, Buffer('positions', self.positions)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Do nothing: a suffix is never stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = Segment(k.transpose(1, 2), v.transpose(1, 2), self._suffix)
        return self._prefix.attend(layer, q, own)

    def attend_prefix(self, layer: int, q: Tensor) -> Tensor:
        """Return attention over the prefix alone."""
        return self._prefix.attend_alone(layer, q)


class TailAppend:
    """Appends each slot's tokens to its row of decode KV and reads prefix and decode KV, causally.

    positions: int64 [slots, tokens], logical. inputs: with `fields`. capacity: as for
    `PrefixRead`.
    """

    def __init__(
        self,
        prefixes: Arena,
        tails: Arena,
        slots: int,
        tokens: int = 1,
        flats: CompressedArena | None = None,
        inputs: StepInputs | None = None,
        capacity: int = 0,
    ) -> None:
        if inputs is None:
            fields = TailAppend.fields(prefixes, tails, slots, tokens, flats)
            inputs = StepInputs(prefixes.device, fields)
        self.inputs = inputs
        self._tails, self.slots, self.tokens = tails, slots, tokens
        self._prefix = PrefixRead(prefixes, flats, slots, tokens, self.inputs, capacity)
        self._tail = batch_over(self.inputs, 'tail', slots, tails.lengths, tokens, True)
        self._positions = self.inputs.cut('positions', slots, tokens)
        self.positions = self._positions.device
        self._slots = torch.arange(slots, device=tails.device)

    @staticmethod
    def fields(
        prefixes: Arena,
        tails: Arena,
        slots: int,
        tokens: int = 1,
        flats: CompressedArena | None = None,
    ) -> Fields:
        """Return the input fields that it needs."""
        tail = table_field('tail', slots, tails.lengths)
        return {**SuffixRead.fields(prefixes, slots, tokens, flats), **tail}

    def bind(
        self,
        rows: Sequence[int],
        tails: Sequence[int],
        count: int | NDArray[np.int64],
        flats: Sequence[int] = (),
        ahead: int = 0,
    ) -> TailAppend:
        """Bind the first slots.

        rows, flats: prefix row and compressed row of each, one of them -1. tails: rows of decode
        KV, whose lengths include the new tokens and `ahead` more behind them. count: new tokens of
        each slot, at most `tokens`; one number for all, or int64 [slots bound].
        """
        own = np.asarray(tails)
        starts = self._tails.positions[own] - count - ahead
        self._tail.bind(own, starts, count)
        place(self._positions.host, self._prefix.bind(rows, flats) + starts)
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arenas."""
        return [
            *self._prefix.buffers,
            Buffer('tail.table', self._tail.table),
            Buffer('positions', self.positions),
        ]

    @property
    def fits_compiled(self) -> bool:
        """Return whether compiled code can read what is bound."""
        return self._prefix.fits_compiled

    def newest(self, hidden: Tensor) -> Tensor:
        """Return each slot's last own token, [slots, width] of hidden [slots, tokens, width]."""
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        return hidden[self._slots, (self._tail.counts - 1).clamp(min=0)]

    def advance(self) -> None:
        """Move behind the appended tokens; a computation may end with it."""
        counts = self._tail.counts
        self._tail.starts.add_(counts)
        self.positions.add_(counts[:, None])

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._tails.layers[layer], self._tail)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        own = Segment(*self._tails.layers[layer], self._tail)
        return self._prefix.attend(layer, q, own)


class DecodeView:
    """The newest token of each slot's row, which reads its own row up to itself.

    positions: int64 [slots, 1]. inputs: with `fields`.
    """

    fits_compiled = False

    def __init__(self, arena: Arena, slots: int, inputs: StepInputs | None = None) -> None:
        self._arena = arena
        self.inputs = inputs or StepInputs(arena.device, DecodeView.fields(arena, slots))
        self._batch = batch_over(self.inputs, 'row', slots, arena.lengths, 1, True)
        self._positions = self.inputs.cut('positions', slots, 1)
        self.positions = self._positions.device

    @staticmethod
    def fields(arena: Arena, slots: int) -> Fields:
        """Return the input fields that it needs."""
        return table_field('row', slots, arena.lengths) | {'positions': (slots, np.int64)}

    def bind(self, rows: Sequence[int]) -> DecodeView:
        """Bind the first slots to rows whose lengths include the new tokens."""
        self._batch.bind(rows)
        place(self._positions.host, self._arena.lengths[0, list(rows)] - 1)
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arena."""
        return [Buffer('row.table', self._batch.table), Buffer('positions', self.positions)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._arena.layers[layer], self._batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return row_attention(q, *self._arena.layers[layer], self._batch, layer)[0]


class SparsePositionView:
    """A view of one row, whose length includes all positions; it is bound to the computed tokens.

    Each token is stored and reads the row up to itself. q: [1, T, heads, head_dim], k and v: [1,
    T, kv_heads, head_dim], for T bound positions. queries: those of the last layer, [T, heads,
    head_dim]. sums: the log-sum-exp of their scores, [T, heads].
    """

    def __init__(self, arena: Arena, row: int) -> None:
        self._arena, self._row = arena, row
        self.queries: Tensor | None = None
        self.sums: Tensor | None = None

    def bind(self, positions: Tensor) -> SparsePositionView:
        """Bind to positions, int64 [T], ascending."""
        count = len(positions)
        # One slot for each token, because each has its own limit; none is padding.
        batch = RowBatch(count, self._arena.lengths, causal=True, device=self._arena.device)
        self._batch = batch.bind([self._row] * count, starts=positions.tolist())
        return self

    def put(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write K and V [kv_heads, n, head_dim] of consecutive tokens that are not computed."""
        span = slice(start, start + k.shape[1])
        for own, given in zip(self._arena.layers[layer], (k, v), strict=True):
            own[self._row, :, span] = given

    def keys(self, layer: int) -> Tensor:
        """Return a view of K of the whole row, [kv_heads, length, head_dim]."""
        length = int(self._arena.lengths[0, self._row])
        return self._arena.layers[layer][0][self._row, :, :length]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        rows = self._arena.layers[layer]
        store_rows(k.transpose(0, 1), v.transpose(0, 1), *rows, self._batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        self.queries = q[0]
        rows = self._arena.layers[layer]
        out, sums = row_attention(q.transpose(0, 1), *rows, self._batch, layer)
        self.sums = sums[:, 0]
        return out.transpose(0, 1)
