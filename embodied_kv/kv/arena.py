"""The tensors of the KV cache, allocated once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from embodied_kv.runtime.buffer import Buffer


class Arena:
    """K and V of every layer, [layers, rows, kv_heads, max_tokens, head_dim].

    kv: K and V stacked. layers: (k, v) of each layer, [rows, kv_heads, max_tokens, head_dim], as
    attention takes them. lengths: int32 [1, rows], valid tokens of each row in all layers.
    positions: int64 [rows], logical position of the next token. Lengths and positions are in host
    memory; the inputs of a step contain those that the device needs.
    """

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        kv_heads: int,
        max_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str | torch.device = 'cpu',
    ) -> None:
        shape = (layers, rows, kv_heads, max_tokens, head_dim)
        self.kv = torch.zeros((2, *shape), dtype=dtype, device=device)
        self.k, self.v = self.kv.unbind(0)
        self.layers = tuple(zip(self.k.unbind(0), self.v.unbind(0), strict=True))
        self.lengths = np.zeros((1, rows), np.int32)
        self.positions = np.zeros(rows, np.int64)
        self.rows, self.max_tokens = rows, max_tokens

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def layout(self) -> str:
        """Return 16 hex digits of the shape and dtype of a row in all layers.

        Arenas with equal layouts can exchange the bytes of their rows.
        """
        layers, _, *row = self.k.shape
        return hashlib.sha256(repr((layers, row, str(self.k.dtype))).encode()).hexdigest()[:16]

    @property
    def bytes(self) -> int:
        return 2 * self.k.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in one layer."""
        return 2 * self.k.shape[2] * self.k.shape[4] * self.k.element_size()

    @property
    def bytes_of_token(self) -> int:
        """Return the bytes of one token in all layers."""
        return len(self.layers) * self.bytes_per_token

    @property
    def bytes_used(self) -> int:
        return int(self.lengths.sum()) * self.bytes_of_token

    @property
    def bytes_per_row(self) -> int:
        """Return the capacity of a row in bytes."""
        return self.max_tokens * self.bytes_of_token

    def bytes_of(self, row: int) -> int:
        """Return the bytes in use by a row."""
        return int(self.lengths[0, row]) * self.bytes_of_token

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """Return all tensors and arrays of the arena."""
        return [self.k, self.v, self.lengths, self.positions]

    def buffers(self, name: str) -> list[Buffer]:
        """Return K and V as named buffers of a computation."""
        return [Buffer(f'{name}.k', self.k), Buffer(f'{name}.v', self.v)]

    def alone(self, row: int) -> Arena:
        """Return an arena of one row over the same memory."""
        view, own = copy(self), slice(row, row + 1)
        view.kv = self.kv[:, :, own]
        view.k, view.v = view.kv.unbind(0)
        view.layers = tuple(zip(view.k.unbind(0), view.v.unbind(0), strict=True))
        view.lengths, view.positions = self.lengths[:, own], self.positions[own]
        view.rows = 1
        return view

    def set_length(self, rows: int | Sequence[int], length: int | np.ndarray) -> None:
        """Set length and position of rows."""
        self.lengths[0, rows] = length
        self.positions[rows] = length

    def clear(self, rows: int | Sequence[int], begin: int = 0) -> None:
        """Fill K and V of rows with zeros from token `begin` on, before a new use; not on CUDA.

        Attention on a CPU reads as many tokens of each row as the longest row of its batch has,
        and hides the surplus by a mask of -inf. The hidden values must be finite, because NaN -
        inf is NaN. The CUDA kernels mask their loads.
        """
        if not self.kv.is_cuda:
            self.kv[:, :, rows, :, begin:] = 0

    def row(self, row: int) -> tuple[Tensor, Tensor]:
        """Return views of the valid K and V of a row, [layers, kv_heads, length, head_dim]."""
        length = int(self.lengths[0, row])
        return self.k[:, row, :, :length], self.v[:, row, :, :length]
