"""What a transformer layer sees of the cache: `attend(layer, q, k, v)`, and where k and v go.

Three ways to use the same rows: write a prefix, read it under a suffix that is thrown away, read
it under a tail that grows. `store` alone is for a last layer whose output nobody needs. The model
never learns which one it was given. A view is made once for a number of slots and tokens and bound
to rows again and again; slots without a row are padding. q: [slots, tokens, heads, head_dim]; k,
v: [slots, tokens, kv_heads, head_dim]; the result is like q.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.attention import merge, row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.joint import JointPrefix, JointSuffix, JointTail, OwnKv
from embodied_kv.runtime.buffer import Buffer


class KvView(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None: ...


class PrefixWrite:
    """Writes each slot's tokens into its prefix row; every valid token sees every other.

    What lies behind a slot's valid tokens is neither stored nor seen.
    """

    def __init__(self, arena: Arena, slots: int, tokens: int) -> None:
        self._arena, self.slots, self.tokens = arena, slots, tokens
        # Of its own: a row that is being written has no length yet for anybody else.
        self._lengths = np.zeros((1, arena.rows), np.int32)
        lengths = torch.from_numpy(self._lengths).to(arena.device)
        self._batch = RowBatch(slots, self._lengths, lengths, tokens)

    def bind(self, rows: Sequence[int], lengths: Sequence[int]) -> PrefixWrite:
        """rows: reserved ones. lengths: valid tokens of each slot."""
        self._lengths[0, list(rows)] = lengths
        if self._arena.device.type != 'cpu':
            self._batch.device_lengths.copy_(torch.from_numpy(self._lengths))
        self._batch.bind(rows, starts=[0] * len(rows), counts=lengths)
        return self

    @property
    def joint(self) -> JointPrefix:
        """The same for a compiler."""
        return JointPrefix(self._arena, self._batch, OwnKv(self._arena, self.slots, self.tokens))

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arena."""
        return _buffers({'prefix': self._batch})

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._arena.layers[layer], self._batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return row_attention(q, *self._arena.layers[layer], self._batch, layer)[0]


class PrefixRead:
    """What stands before a slot's own tokens: a prefix row, or a compressed copy of one.

    flats: None where nothing is compressed.
    """

    def __init__(
        self, prefixes: Arena, flats: CompressedArena | None, slots: int, tokens: int
    ) -> None:
        self.prefixes = prefixes
        self._parts: list[tuple[Arena | CompressedArena, RowBatch]] = [
            (prefixes, RowBatch(slots, prefixes.lengths, prefixes.device_lengths, tokens))
        ]
        if flats is not None:
            batch = RowBatch(
                slots,
                flats.lengths,
                flats.device_lengths,
                tokens,
                offsets=flats.offsets,
                device_offsets=flats.device_offsets,
            )
            self._parts.append((flats, batch))

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> np.ndarray:
        """rows, flats: of each slot, one of them -1. Returns where each slot goes on, int64."""
        after = np.zeros(len(rows), np.int64)
        for (arena, batch), bound in zip(self._parts, (rows, flats), strict=False):
            batch.bind(bound)
            taken = np.array(bound, np.int64)
            if len(taken):
                after += np.where(taken < 0, 0, arena.positions[taken])
        return after

    @property
    def whole(self) -> RowBatch:
        """The slots that read a prefix row."""
        return self._parts[0][1]

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside K and V."""
        names = ('prefix', 'flat')
        return _buffers({n: batch for n, (_, batch) in zip(names, self._parts, strict=False)})

    def attend(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of each slot; see `kernels.attention.row_attention`."""
        # Eager, a kind that no slot reads costs nothing; captured, both are in the graph.
        parts = [part for part in self._parts if q.is_cuda or part[1].live] or self._parts[:1]
        read = [row_attention(q, *arena.layers[layer], b, layer) for arena, b in parts]
        if len(read) == 1:
            return read[0]
        (out, lse), (more, more_lse) = read  # of every slot one is zero
        return out + more, lse + more_lse


class SuffixRead:
    """Reads each slot's prefix and the suffix itself, both whole; stores nothing.

    tokens: length of the suffix (the action horizon). positions: int64 [slots, tokens], logical.
    """

    def __init__(
        self, prefixes: Arena, slots: int, tokens: int, flats: CompressedArena | None = None
    ) -> None:
        self._prefix = PrefixRead(prefixes, flats, slots, tokens)
        self._suffix = RowBatch.dense(slots, tokens, tokens, prefixes.device)
        self.positions = torch.zeros(slots, tokens, dtype=torch.int64, device=prefixes.device)

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> SuffixRead:
        """rows, flats: of each slot, one of them -1."""
        _place(self.positions, self._prefix.bind(rows, flats))
        return self

    @property
    def joint(self) -> JointSuffix:
        """The same for a compiler, while no slot reads a compressed copy."""
        return JointSuffix(self._prefix.prefixes, self._prefix.whole)

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arenas; how the suffix lies is a constant."""
        return [*self._prefix.buffers, Buffer('suffix.positions', self.positions)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """A suffix is never stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = row_attention(q, k.transpose(1, 2), v.transpose(1, 2), self._suffix)
        return merge(self._prefix.attend(layer, q), own)


class TailAppend:
    """Appends each slot's tokens to its tail row and reads prefix and tail; the tail is causal.

    positions: int64 [slots, tokens], logical.
    """

    def __init__(
        self,
        prefixes: Arena,
        tails: Arena,
        slots: int,
        tokens: int = 1,
        flats: CompressedArena | None = None,
    ) -> None:
        self._tails = tails
        self._prefix = PrefixRead(prefixes, flats, slots, tokens)
        self._tail = RowBatch(slots, tails.lengths, tails.device_lengths, tokens, causal=True)
        self.positions = torch.zeros(slots, tokens, dtype=torch.int64, device=tails.device)
        self._slots = torch.arange(slots, device=tails.device)

    def bind(
        self, rows: Sequence[int], tails: Sequence[int], count: int, flats: Sequence[int] = ()
    ) -> TailAppend:
        """rows, flats: of each slot, one of them -1.

        tails: rows that count the new tokens already. count: new tokens of each slot, at most
        `tokens`.
        """
        tails = list(tails)
        starts = self._tails.positions[tails] - count
        self._tail.bind(tails, starts, [count] * len(tails))
        _place(self.positions, self._prefix.bind(rows, flats) + starts)
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads beside the arenas."""
        positions = Buffer('tail.positions', self.positions)
        return [*self._prefix.buffers, *_buffers({'tail': self._tail}), positions]

    @property
    def joint(self) -> JointTail:
        """The same for a compiler, while no slot reads a compressed copy."""
        own = OwnKv(self._tails, *self.positions.shape)
        prefix = self._prefix.prefixes, self._prefix.whole
        return JointTail(*prefix, self._tails, self._tail, own, self.positions)

    def newest(self, hidden: Tensor) -> Tensor:
        """hidden [slots, tokens, width] -> of each slot's last own token, [slots, width]."""
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        return hidden[self._slots, (self._tail.counts - 1).clamp(min=0)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._tails.layers[layer], self._tail)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        own = row_attention(q, *self._tails.layers[layer], self._tail, layer)
        return merge(self._prefix.attend(layer, q), own)


def _place(positions: Tensor, starts: np.ndarray) -> None:
    """Slot b begins at position starts[b]; padding at 0."""
    slots, tokens = positions.shape
    first = np.zeros((slots, 1), np.int64)
    first[: len(starts), 0] = starts
    positions.copy_(torch.from_numpy(first + np.arange(tokens)))


def _buffers(batches: Mapping[str, RowBatch]) -> list[Buffer]:
    return [
        Buffer(f'{name}.{part}', memory)
        for name, batch in batches.items()
        for part, memory in batch.memory.items()
    ]
