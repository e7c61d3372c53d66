"""The cache of compressed prefixes: one ragged axis of tokens, of which a row owns a block.

Each layer of a row is a piece of its block, as long as that layer's budget: per-layer ragged, and
gathered once. Knows blocks, pieces and bytes. Does not know who chose the tokens, nor who reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.rows import FreeRows
from embodied_kv.runtime.buffer import Buffer

BLOCK = 32  # tokens that a block is rounded up to


class CompressedArena:
    """k, v: [1, kv_heads, tokens, head_dim], all layers on one axis; for rows of `source`.

    lengths, offsets: int32 [layers, rows], tokens of each layer's piece and where it begins, in
    host memory. positions: int64 [rows], the logical position of the token that would come next,
    as in the row it was taken from: it does not depend on what was kept.
    """

    def __init__(self, source: Arena, rows: int, tokens: int) -> None:
        layers, _, kv_heads, _, head_dim = source.k.shape
        tokens, device = _block(tokens), source.device
        shape = (1, kv_heads, tokens, head_dim)
        self.k = torch.zeros(shape, dtype=source.k.dtype, device=device)
        self.v = torch.zeros(shape, dtype=source.k.dtype, device=device)
        self.layers = ((self.k, self.v),) * layers
        self.lengths = np.zeros((layers, rows), np.int32)
        self.offsets = np.zeros((layers, rows), np.int32)
        self.positions = np.zeros(rows, np.int64)
        self.rows, self.tokens = rows, tokens
        self._free_rows = FreeRows(rows)
        self._gaps = [(0, tokens)] if tokens else []  # free [begin, end), ascending, apart

    @property
    def bytes_per_token(self) -> int:
        """Of one token in one layer."""
        return 2 * self.k.shape[1] * self.k.shape[3] * self.k.element_size()

    @property
    def bytes(self) -> int:
        return 2 * self.k.nbytes

    @property
    def bytes_used(self) -> int:
        return self.tokens_used * self.bytes_per_token

    def bytes_of(self, row: int) -> int:
        """In use by a row."""
        return int(self.lengths[:, row].sum()) * self.bytes_per_token

    @property
    def tokens_used(self) -> int:
        """Tokens kept, of all rows and layers."""
        return int(self.lengths.sum())

    @property
    def tokens_free(self) -> int:
        """Tokens that no block owns."""
        return sum(end - begin for begin, end in self._gaps)

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """All that it keeps."""
        return [self.k, self.v, self.lengths, self.offsets, self.positions]

    def buffers(self, name: str) -> list[Buffer]:
        """Its K and V, for whoever computes with them."""
        return [Buffer(f'{name}.k', self.k), Buffer(f'{name}.v', self.v)]

    def has_room(self, totals: Sequence[int]) -> bool:
        """Whether rows of so many tokens in all layers could be taken, one after another."""
        gaps = list(self._gaps)
        return len(totals) <= len(self._free_rows) and all(
            _first_fit(gaps, _block(total)) is not None for total in totals
        )

    def take(self, budgets: Sequence[int], position: int) -> int | None:
        """A row with room for so many tokens in each layer; None if there is no such room."""
        begin = _first_fit(self._gaps, _block(sum(budgets))) if self._free_rows else None
        if begin is None:
            return None
        row = self._free_rows.take()
        self.lengths[:, row] = budgets
        self.offsets[:, row] = begin + np.cumsum([0, *budgets[:-1]])
        self.positions[row] = position
        return row

    def give(self, row: int) -> None:
        """Returns a row and its block."""
        begin = int(self.offsets[0, row])
        gaps = sorted([*self._gaps, (begin, begin + _block(int(self.lengths[:, row].sum())))])
        merged = [gaps[0]]
        for gap in gaps[1:]:
            if gap[0] == merged[-1][1]:
                merged[-1] = (merged[-1][0], gap[1])
            else:
                merged.append(gap)
        self._gaps = merged
        self.lengths[:, row] = 0
        self._free_rows.give(row)

    def gather(self, row: int, source: Arena, source_row: int, kept: Sequence[Tensor]) -> None:
        """Copies the kept tokens of a row in: of each layer, positions int64 [kv_heads, n]."""
        heads = torch.arange(self.k.shape[1], device=self.k.device)[:, None]
        for layer, positions in enumerate(kept):
            for own, theirs in zip(self.piece(layer, row), source.layers[layer], strict=True):
                own.copy_(theirs[source_row][heads, positions])

    def piece(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer of a row: views [kv_heads, tokens of that layer, head_dim]."""
        begin = int(self.offsets[layer, row])
        tokens = slice(begin, begin + int(self.lengths[layer, row]))
        return self.k[0, :, tokens], self.v[0, :, tokens]

    def block(self, row: int) -> tuple[Tensor, Tensor]:
        """All pieces of a row, in the order of layers: views [kv_heads, tokens, head_dim]."""
        begin = int(self.offsets[0, row])
        tokens = slice(begin, begin + int(self.lengths[:, row].sum()))
        return self.k[0, :, tokens], self.v[0, :, tokens]

    def __contains__(self, row: int) -> bool:
        """Whether the row is free."""
        return row in self._free_rows

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: owned + free = tokens, no two blocks meet."""
        taken = [row for row in range(self.rows) if row not in self._free_rows]
        blocks = [(int(self.offsets[0, r]), _block(int(self.lengths[:, r].sum()))) for r in taken]
        spans = sorted([*((b, b + size) for b, size in blocks), *self._gaps])
        ends = [0, *(end for _, end in spans)]
        assert [begin for begin, _ in spans] == ends[:-1] and ends[-1] == self.tokens, (
            f'blocks and gaps {spans} do not tile {self.tokens} tokens'
        )
        idle = [r for r in range(self.rows) if r in self._free_rows and self.lengths[:, r].any()]
        assert not idle, f'free compressed rows {idle} have tokens'


def _first_fit(gaps: list[tuple[int, int]], needed: int) -> int | None:
    """Cuts so many tokens off the first gap that has them; where they begin, None if none has."""
    for i, (begin, end) in enumerate(gaps):
        if end - begin >= needed:
            gaps[i : i + 1] = [(begin + needed, end)] if begin + needed < end else []
            return begin
    return None


def _block(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK
