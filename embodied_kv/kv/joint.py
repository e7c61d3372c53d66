"""What a transformer layer sees of the cache when it is compiled: `views`, of tensors alone.

Rows are gathered beside the slots' own keys, for one attention over all of it. Nothing is written
into a row while a compiled computation runs: what is to be stored lies in `own` afterwards, and
`keep` stores it, all layers at once. They see whole prefixes only, no compressed copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from embodied_kv.kernels.joint import before, gathered, joint_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_layers
from embodied_kv.kv.arena import Arena
from embodied_kv.runtime.buffer import Buffer


class OwnKv:
    """Keys and values of the slots' own tokens, [layers, slots, tokens, kv_heads, head_dim]."""

    def __init__(self, arena: Arena, slots: int, tokens: int) -> None:
        layers, _, kv_heads, _, dim = arena.k.shape
        self.kv = arena.kv.new_zeros(2, layers, slots, tokens, kv_heads, dim)
        self.k, self.v = self.kv.unbind(0)

    @property
    def buffers(self) -> list[Buffer]:
        return [Buffer('own.k', self.k), Buffer('own.v', self.v)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.k[layer].copy_(k)
        self.v[layer].copy_(v)

    def prepare(self, arena: Arena, batch: RowBatch) -> None:
        """For `keep`: where the batch is bound to."""
        batch.places(*arena.k.shape[2:4])

    def keep(self, arena: Arena, batch: RowBatch) -> None:
        """Into the rows of an arena, where the batch is bound to."""
        store_layers(self.kv, arena.kv, batch)


class JointView(Protocol):
    """own_buffers: what it writes while the computation runs; `keep`: into rows, afterwards.

    `prepare`: what `keep` needs is made before, while the host's caches hold what made it.
    """

    own_buffers: Sequence[Buffer]

    def prepare(self) -> None: ...

    def keep(self) -> None: ...


class JointSuffix:
    """Each slot's prefix row, and the suffix itself, whole; stores nothing."""

    own_buffers: Sequence[Buffer] = ()

    def __init__(self, prefixes: Arena, batch: RowBatch) -> None:
        self._prefixes, self._batch = prefixes, batch

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """A suffix is never stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengths = self._batch.lengths[0]
        keys, values = gathered(*self._prefixes.layers[layer], self._batch, lengths)
        prefix = before(lengths, keys.shape[2])
        seen = torch.cat([prefix, prefix.new_ones(len(q), 1, q.shape[1])], 2)
        return joint_attention(q, _beside(keys, k), _beside(values, v), seen)

    def keep(self) -> None:
        """Nothing."""

    prepare = keep


class JointTail:
    """Each slot's prefix row, what its tail row holds already, and its own tokens, causal."""

    def __init__(
        self,
        prefixes: Arena,
        prefix: RowBatch,
        tails: Arena,
        tail: RowBatch,
        own: OwnKv,
        positions: Tensor,
    ) -> None:
        self._prefixes, self._prefix = prefixes, prefix
        self._tails, self._tail, self.own, self.own_buffers = tails, tail, own, own.buffers
        self.positions = positions

    def newest(self, hidden: Tensor) -> Tensor:
        """As of `views.TailAppend`."""
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        slots = torch.arange(len(hidden), device=hidden.device)
        return hidden[slots, (self._tail.counts - 1).clamp(min=0)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.own.store(layer, q, k, v)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.own.store(layer, q, k, v)
        lengths, starts = self._prefix.lengths[0], self._tail.starts
        keys, values = gathered(*self._prefixes.layers[layer], self._prefix, lengths)
        old_keys, old_values = gathered(*self._tails.layers[layer], self._tail, starts)
        slots, tokens = q.shape[:2]
        prefix = before(lengths, keys.shape[2])
        tail = before(starts, old_keys.shape[2])
        own = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril()
        parts = (part.expand(slots, tokens, -1) for part in (prefix, tail, own[None]))
        seen = torch.cat(tuple(parts), 2)
        keys = _beside(torch.cat([keys, old_keys], 2), k)
        values = _beside(torch.cat([values, old_values], 2), v)
        return joint_attention(q, keys, values, seen)

    def prepare(self) -> None:
        self.own.prepare(self._tails, self._tail)

    def advance(self) -> None:
        """As of `views.TailAppend`; the rest of it is behind what is kept."""
        self.positions.add_(self._tail.counts[:, None])

    def keep(self) -> None:
        self.own.keep(self._tails, self._tail)
        self._tail.starts.add_(self._tail.counts)


class JointPrefix:
    """The slots' own tokens, each of which sees all valid ones."""

    def __init__(self, prefixes: Arena, batch: RowBatch, own: OwnKv) -> None:
        self._prefixes, self._batch, self.own = prefixes, batch, own
        self.own_buffers = own.buffers

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.own.store(layer, q, k, v)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.own.store(layer, q, k, v)
        seen = before(self._batch.counts.clamp(min=1), q.shape[1])  # padding sees something
        return joint_attention(q, k.transpose(1, 2), v.transpose(1, 2), seen)

    def prepare(self) -> None:
        self.own.prepare(self._prefixes, self._batch)

    def keep(self) -> None:
        self.own.keep(self._prefixes, self._batch)


def _beside(rows: Tensor, own: Tensor) -> Tensor:
    """rows [slots, kv_heads, n, head_dim], then own [slots, tokens, kv_heads, head_dim]."""
    return torch.cat([rows, own.transpose(1, 2)], 2)
