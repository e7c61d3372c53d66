"""What a transformer layer sees of the cache: `attend(layer, q, k, v)`, and where k and v go.

Three ways to use the same rows: write a prefix, read it under a suffix that is thrown away, read
it under a tail that grows. `store` alone is for a last layer whose output nobody needs. The model
never learns which one it was given. A view is made once for a number of slots and tokens and bound
to rows again and again; slots without a row are padding. What is bound lies in the fields of a
step's inputs, which `bind` sends: whatever else is in them is written before. q: [slots, tokens,
heads, head_dim]; k, v: [slots, tokens, kv_heads, head_dim]; the result is like q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.attention import segments_attention
from embodied_kv.kernels.rows import RowBatch, Segment
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import PrefixRead, batch_over, place, table_field
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import Fields, StepInputs


class KvView(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None: ...


class PrefixWrite:
    """Writes each slot's tokens into its prefix row; every valid token sees every other.

    What lies behind a slot's valid tokens is neither stored nor seen. inputs: with `fields`.
    """

    fits_compiled = True

    def __init__(
        self, arena: Arena, slots: int, tokens: int, inputs: StepInputs | None = None
    ) -> None:
        self._arena, self.slots, self.tokens = arena, slots, tokens
        # Of its own: a row that is being written has no length yet for anybody else.
        self._lengths = np.zeros((1, arena.rows), np.int32)
        self.inputs = inputs or StepInputs(arena.device, PrefixWrite.fields(arena, slots))
        self._batch = batch_over(self.inputs, 'prefix', slots, self._lengths, tokens)

    @staticmethod
    def fields(arena: Arena, slots: int) -> Fields:
        """That it needs of its inputs."""
        return table_field('prefix', slots, arena.lengths)

    def bind(self, rows: Sequence[int], lengths: Sequence[int]) -> PrefixWrite:
        """rows: reserved ones. lengths: valid tokens of each slot."""
        self._lengths[0, list(rows)] = lengths
        self._batch.bind(rows, starts=[0] * len(rows), counts=lengths)
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arena."""
        return [Buffer('prefix.table', self._batch.table)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._arena.layers[layer], self._batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        own = Segment(*self._arena.layers[layer], self._batch)
        return segments_attention(q, (own,), layer)


class SuffixRead:
    """Reads each slot's prefix and the suffix itself, both whole; stores nothing.

    tokens: length of the suffix (the action horizon). positions: int64 [slots, tokens], logical.
    inputs: with `fields`.
    """

    def __init__(
        self,
        prefixes: Arena,
        slots: int,
        tokens: int,
        flats: CompressedArena | None = None,
        inputs: StepInputs | None = None,
    ) -> None:
        if inputs is None:
            fields = SuffixRead.fields(prefixes, slots, tokens, flats)
            inputs = StepInputs(prefixes.device, fields)
        self.inputs = inputs
        self._prefix = PrefixRead(prefixes, flats, slots, tokens, self.inputs)
        self._suffix = RowBatch.dense(slots, tokens, tokens, prefixes.device)
        self._positions = self.inputs.cut('positions', slots, tokens)
        self.positions = self._positions.device

    @staticmethod
    def fields(
        prefixes: Arena, slots: int, tokens: int, flats: CompressedArena | None = None
    ) -> Fields:
        """That it needs of its inputs."""
        positions = {'positions': (slots * tokens, np.int64)}
        return PrefixRead.fields(prefixes, flats, slots) | positions

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> SuffixRead:
        """rows, flats: of each slot, one of them -1."""
        place(self._positions.host, self._prefix.bind(rows, flats))
        self.inputs.send()
        return self

    @property
    def fits_compiled(self) -> bool:
        """Whether no slot reads a compressed copy."""
        return not self._prefix.reads_copies

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arenas; how the suffix lies is a constant."""
        return [*self._prefix.buffers, Buffer('positions', self.positions)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """A suffix is never stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = Segment(k.transpose(1, 2), v.transpose(1, 2), self._suffix)
        return self._prefix.attend(layer, q, own)


class TailAppend:
    """Appends each slot's tokens to its tail row and reads prefix and tail; the tail is causal.

    positions: int64 [slots, tokens], logical. inputs: with `fields`.
    """

    def __init__(
        self,
        prefixes: Arena,
        tails: Arena,
        slots: int,
        tokens: int = 1,
        flats: CompressedArena | None = None,
        inputs: StepInputs | None = None,
    ) -> None:
        if inputs is None:
            fields = TailAppend.fields(prefixes, tails, slots, tokens, flats)
            inputs = StepInputs(prefixes.device, fields)
        self.inputs = inputs
        self._tails, self.slots, self.tokens = tails, slots, tokens
        self._prefix = PrefixRead(prefixes, flats, slots, tokens, self.inputs)
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
        """That it needs of its inputs."""
        tail = table_field('tail', slots, tails.lengths)
        return SuffixRead.fields(prefixes, slots, tokens, flats) | tail

    def bind(
        self,
        rows: Sequence[int],
        tails: Sequence[int],
        count: int,
        flats: Sequence[int] = (),
        ahead: int = 0,
    ) -> TailAppend:
        """rows, flats: of each slot, one of them -1.

        tails: rows that count the new tokens already, and `ahead` more that come after them.
        count: new tokens of each slot, at most `tokens`.
        """
        tails = np.asarray(tails)
        starts = self._tails.positions[tails] - count - ahead
        self._tail.bind(tails, starts, count)
        place(self._positions.host, self._prefix.bind(rows, flats) + starts)
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arenas."""
        return [
            *self._prefix.buffers,
            Buffer('tail.table', self._tail.table),
            Buffer('positions', self.positions),
        ]

    @property
    def fits_compiled(self) -> bool:
        """Whether no slot reads a compressed copy."""
        return not self._prefix.reads_copies

    def newest(self, hidden: Tensor) -> Tensor:
        """hidden [slots, tokens, width] -> of each slot's last own token, [slots, width]."""
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        return hidden[self._slots, (self._tail.counts - 1).clamp(min=0)]

    def advance(self) -> None:
        """What comes next lies behind what was appended; a computation may end so."""
        counts = self._tail.counts
        self._tail.starts.add_(counts)
        self.positions.add_(counts[:, None])

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._tails.layers[layer], self._tail)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        own = Segment(*self._tails.layers[layer], self._tail)
        return self._prefix.attend(layer, q, own)
