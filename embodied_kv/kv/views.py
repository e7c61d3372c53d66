"""What a transformer layer sees of the cache: `attend(layer, q, k, v)`, and where k and v go.

Three ways to use the same rows: write a prefix, read it under a suffix that is thrown away, read
it under a tail that grows. The model never learns which one it was given. q: [slots, tokens,
heads, head_dim]; k, v: [slots, tokens, kv_heads, head_dim]; the result is like q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.attention import merge, row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kv.arena import Arena


class KvView(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def store(self, layer: int, k: Tensor, v: Tensor) -> None: ...


class PrefixWrite:
    """Writes each slot's tokens into its prefix row; every valid token sees every other.

    rows: reserved rows. lengths: valid tokens of each slot; what lies behind them is neither
    stored nor seen.
    """

    def __init__(self, arena: Arena, rows: Sequence[int], lengths: Sequence[int]) -> None:
        self._arena, self._rows, self._lengths = arena, rows, lengths
        host = np.zeros((1, arena.rows), np.int32)
        host[0, list(rows)] = lengths
        self._batch: RowBatch | None = None
        self._host = host

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        keys, values = self._arena.layers[layer]
        for slot, (row, length) in enumerate(zip(self._rows, self._lengths, strict=True)):
            keys[row, :, :length] = k[slot, :length].transpose(0, 1)
            values[row, :, :length] = v[slot, :length].transpose(0, 1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, k, v)
        if self._batch is None:
            device_lengths = torch.from_numpy(self._host).to(q.device)
            self._batch = RowBatch(self._rows, self._host, device_lengths, tokens=q.shape[1])
        return row_attention(q, *self._arena.layers[layer], self._batch, layer)[0]


class SuffixRead:
    """Reads each slot's prefix row and the suffix itself, both whole; stores nothing.

    tokens: length of the suffix (the action horizon).
    """

    def __init__(self, prefixes: Arena, rows: Sequence[int], tokens: int) -> None:
        self._prefixes = prefixes
        self._prefix = RowBatch(rows, prefixes.lengths, prefixes.device_lengths, tokens)
        self._suffix = RowBatch.dense(len(rows), tokens, tokens, prefixes.device)
        self.start = prefixes.positions[list(rows)]  # [slots]: logical position of the first token

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """A suffix is never stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return merge(
            row_attention(q, *self._prefixes.layers[layer], self._prefix, layer),
            row_attention(q, k.transpose(1, 2), v.transpose(1, 2), self._suffix),
        )


class TailAppend:
    """Appends each slot's tokens to its tail row and reads prefix and tail; the tail is causal.

    rows, tails: row ids; the tails' lengths already count the new tokens (`KvManager.grow`).
    slots: width of the batch; slots beyond the rows are padding, whose result is zero.
    """

    def __init__(
        self,
        prefixes: Arena,
        tails: Arena,
        rows: Sequence[int],
        tail_rows: Sequence[int],
        tokens: int = 1,
        slots: int | None = None,
    ) -> None:
        self._prefixes, self._tails = prefixes, tails
        self._live, self._slots = len(rows), slots or len(rows)
        self._prefix = RowBatch(rows, prefixes.lengths, prefixes.device_lengths, tokens)
        self._tail = RowBatch(tail_rows, tails.lengths, tails.device_lengths, tokens, causal=True)
        end = tails.positions[list(tail_rows)]
        steps = np.arange(-tokens, 0)
        self._at = torch.from_numpy(end[:, None] + steps).to(tails.device)  # [live, tokens]
        self._ids = self._tail.ids[:, None]
        positions = np.zeros((self._slots, tokens), np.int64)
        positions[: self._live] = prefixes.positions[list(rows), None] + end[:, None] + steps
        self.positions = torch.from_numpy(positions).to(tails.device)  # [slots, tokens], logical

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        keys, values = self._tails.layers[layer]
        keys[self._ids, :, self._at] = k[: self._live]
        values[self._ids, :, self._at] = v[: self._live]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, k, v)
        live = q[: self._live]
        out = merge(
            row_attention(live, *self._prefixes.layers[layer], self._prefix, layer),
            row_attention(live, *self._tails.layers[layer], self._tail, layer),
        )
        if self._live == self._slots:
            return out
        padded = out.new_zeros(q.shape)
        padded[: self._live] = out
        return padded
