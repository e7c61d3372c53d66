"""The tensors of compressed rows: one ragged axis of tokens, on which each row owns a block.

Each layer of a row is a piece of its block, as long as that layer's budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.rows import FreeRows
from embodied_kv.runtime.buffer import Buffer

BLOCK = 32  # tokens; the size of a block is a multiple of it


class CompressedArena:
    """Compressed copies of rows of `source`.

    k, v: [1, kv_heads, tokens, head_dim], all layers on one axis. lengths, offsets: int32 [layers,
    rows], number of tokens of each layer's piece and its begin, in host memory. positions: int64
    [rows], logical position of the next token, as in the source row.
    """

    def __init__(self, source: Arena, rows: int, tokens: int) -> None:
        layers, _, kv_heads, _, head_dim = source.k.shape
        tokens, device = whole_blocks(tokens), source.device
        shape = (1, kv_heads, tokens, head_dim)
        self.k = torch.zeros(shape, dtype=source.k.dtype, device=device)
        self.v = torch.zeros(shape, dtype=source.k.dtype, device=device)
        self.layers = ((self.k, self.v),) * layers
        self.lengths = np.zeros((layers, rows), np.int32)
        self.offsets = np.zeros((layers, rows), np.int32)
        self.positions = np.zeros(rows, np.int64)
        self.rows, self.tokens = rows, tokens
        self._free_rows = FreeRows(rows)
        self._gaps = [(0, tokens)] if tokens else []  # free [begin, end), ascending, not adjacent

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in one layer."""
        return 2 * self.k.shape[1] * self.k.shape[3] * self.k.element_size()

    @property
    def bytes(self) -> int:
        return 2 * self.k.nbytes

    @property
    def bytes_used(self) -> int:
        return int(self.lengths.sum()) * self.bytes_per_token

    def bytes_of(self, row: int) -> int:
        """Return the bytes in use by a row."""
        return int(self.lengths[:, row].sum()) * self.bytes_per_token

    @property
    def tokens_free(self) -> int:
        """Return the number of tokens that no block owns."""
        return sum(end - begin for begin, end in self._gaps)

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """Return all tensors and arrays of the arena."""
        return [self.k, self.v, self.lengths, self.offsets, self.positions]

    def buffers(self, name: str) -> list[Buffer]:
        """Return K and V as named buffers of a computation."""
        return [Buffer(f'{name}.k', self.k), Buffer(f'{name}.v', self.v)]

    def has_room(self, totals: Sequence[int]) -> bool:
        """Return whether rows with these total numbers of tokens could be allocated together."""
        gaps = list(self._gaps)
        return len(totals) <= len(self._free_rows) and all(
            _first_fit(gaps, whole_blocks(total)) is not None for total in totals
        )

    def allocate(self, budgets: Sequence[int], position: int) -> int | None:
        """Return a row with room for `budgets` tokens per layer; None without such room."""
        begin = _first_fit(self._gaps, whole_blocks(sum(budgets))) if self._free_rows else None
        if begin is None:
            return None
        row = self._free_rows.allocate()
        self.lengths[:, row] = budgets
        self.offsets[:, row] = begin + np.cumsum([0, *budgets[:-1]])
        self.positions[row] = position
        return row

    def free(self, row: int) -> None:
        """Free a row and its block."""
        begin = int(self.offsets[0, row])
        gaps = sorted(
            [*self._gaps, (begin, begin + whole_blocks(int(self.lengths[:, row].sum())))]
        )
        merged = [gaps[0]]
        for gap in gaps[1:]:
            if gap[0] == merged[-1][1]:
                merged[-1] = (merged[-1][0], gap[1])
            else:
                merged.append(gap)
        self._gaps = merged
        self.lengths[:, row] = 0
        self._free_rows.free(row)

    def gather(
        self,
        row: int,
        source: Arena,
        source_row: int,
        kept: Sequence[Tensor],
        before: Sequence[tuple[Tensor, Tensor]] = (),
        behind: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        """Copy the kept tokens of a source row, between those of `before` and `behind`.

        kept: int64 [kv_heads, n] for each layer. before, behind: K and V [kv_heads, m, head_dim].
        """
        heads = torch.arange(self.k.shape[1], device=self.k.device)[:, None]
        for layer, positions in enumerate(kept):
            for part, own in enumerate(self.piece(layer, row)):
                pieces = [source.layers[layer][part][source_row][heads, positions]]
                pieces[:0] = [before[layer][part]] if before else []
                pieces += [behind[layer][part]] if behind else []
                torch.cat(pieces, 1, out=own)

    def piece(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer of a row, views [kv_heads, tokens, head_dim]."""
        begin = int(self.offsets[layer, row])
        tokens = slice(begin, begin + int(self.lengths[layer, row]))
        return self.k[0, :, tokens], self.v[0, :, tokens]

    def block(self, row: int) -> tuple[Tensor, Tensor]:
        """Return K and V of all layers in order, views [kv_heads, tokens, head_dim]."""
        begin = int(self.offsets[0, row])
        tokens = slice(begin, begin + int(self.lengths[:, row].sum()))
        return self.k[0, :, tokens], self.v[0, :, tokens]

    def __contains__(self, row: int) -> bool:
        """Return whether the row is free."""
        return row in self._free_rows

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks and gaps tile the axis: owned + free = tokens."""
        taken = [row for row in range(self.rows) if row not in self._free_rows]
        sizes = {row: whole_blocks(int(self.lengths[:, row].sum())) for row in taken}
        begins = {row: int(self.offsets[0, row]) for row in taken}
        spans = sorted([*((begins[r], begins[r] + sizes[r]) for r in taken), *self._gaps])
        ends = [0, *(end for _, end in spans)]
        assert [begin for begin, _ in spans] == ends[:-1] and ends[-1] == self.tokens, (
            f'blocks and gaps {spans} do not tile {self.tokens} tokens'
        )
        idle = [r for r in range(self.rows) if r in self._free_rows and self.lengths[:, r].any()]
        assert not idle, f'free compressed rows {idle} have tokens'


def _first_fit(gaps: list[tuple[int, int]], needed: int) -> int | None:
    """Cut `needed` tokens off the first gap that has them; return their begin, or None."""
    for i, (begin, end) in enumerate(gaps):
        if end - begin >= needed:
            gaps[i : i + 1] = [(begin + needed, end)] if begin + needed < end else []
            return begin
    return None


def whole_blocks(tokens: int) -> int:
    """Return the tokens of the block of a row with so many."""
    return -(-tokens // BLOCK) * BLOCK
