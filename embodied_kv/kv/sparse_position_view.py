"""Views of tokens at any positions of one row: each is stored, and reads what lies before it.

A prompt whose pieces are partly computed and partly loaded is such a set in each layer; the loader
writes K and V into the row first (`put`).
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.kernels.attention import row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena


class SparsePositionView:
    """A view of one row, whose length includes all positions; it is bound to the computed tokens.

    As a `kv.views.KvView` it takes q [1, T, heads, head_dim], k and v [1, T, kv_heads, head_dim],
    for T bound positions. It keeps the queries of the last layer, [T, heads, head_dim], and sums,
    the log-sum-exp of their scores, [T, heads].
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
        """Write K and V [kv_heads, n, head_dim] of neighbouring tokens that are not computed."""
        span = slice(start, start + k.shape[1])
        for own, given in zip(self._arena.layers[layer], (k, v), strict=True):
            own[self._row, :, span] = given

    def keys(self, layer: int) -> Tensor:
        """Return a view of K of the whole row, [kv_heads, length, head_dim]."""
        length = int(self._arena.lengths[0, self._row])
        return self._arena.layers[layer][0][self._row, :, :length]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        new = (part.transpose(0, 1) for part in (k, v))
        store_rows(*new, *self._arena.layers[layer], self._batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        self.queries = q[0]
        rows = self._arena.layers[layer]
        out, sums = row_attention(q.transpose(0, 1), *rows, self._batch, layer)
        self.sums = sums[:, 0]
        return out.transpose(0, 1)
