"""The next token of several rows, one each, wherever each row is by now.

Knows positions. Does not know what is said, or why a row lacks tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from embodied_kv.kernels.attention import row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena


class NextTokens:
    """A view of rows whose lengths cover these tokens; each reads its own row, up to itself.

    As a `kv.views.KvView` it takes q [B, 1, heads, head_dim], k and v [B, 1, kv_heads, head_dim],
    B the rows. positions: of each token. absent: as `PlacedTokens`, of each row.
    """

    def __init__(
        self,
        arena: Arena,
        rows: Sequence[int],
        positions: Sequence[int],
        absent: Sequence[Sequence[int]],
    ) -> None:
        self._arena, self._rows, self._positions = arena, list(rows), positions
        layers = len(arena.layers)
        self._absent = list(zip(*(lacks or (0,) * layers for lacks in absent), strict=True))
        self._batches: dict[tuple[int, ...], RowBatch] = {}

    def _batch_of(self, layer: int) -> RowBatch:
        """Of this layer; layers whose rows lack as many tokens share one."""
        lacks = self._absent[layer]
        if lacks not in self._batches:
            places = [at - n for at, n in zip(self._positions, lacks, strict=True)]
            lengths, device = self._arena.lengths, self._arena.device
            batch = RowBatch(len(self._rows), lengths, causal=True, device=device)
            self._batches[lacks] = batch.bind(self._rows, starts=places)
        return self._batches[lacks]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._arena.layers[layer], self._batch_of(layer))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return row_attention(q, *self._arena.layers[layer], self._batch_of(layer), layer)[0]
