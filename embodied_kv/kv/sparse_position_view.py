"""Views of tokens at any positions of one row: each is stored, and reads what lies before it.

A prompt whose pieces are partly computed and partly loaded is such a set in each layer; the loader
writes K and V into the row first (`put`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
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

    absent: tokens before those positions that each layer lacks; the row is compact, so a token is
    stored that many places before its position.
    """

    def __init__(self, arena: Arena, row: int, absent: Sequence[int] = ()) -> None:
        self._arena, self._row = arena, row
        self._absent = tuple(absent) or (0,) * len(arena.layers)
        self.queries: Tensor | None = None
        self.sums: Tensor | None = None

    def bind(self, positions: Tensor) -> SparsePositionView:
        """Bind to positions, int64 [T], ascending."""
        self._positions, self._batches = positions, {}
        return self

    def places(self, layer: int) -> Tensor:
        """Return the place of each token in the row, int64 [T]."""
        return self._positions - self._absent[layer]

    def _batch_of(self, layer: int) -> RowBatch:
        absent, count = self._absent[layer], len(self._positions)
        if absent not in self._batches:
            # One slot for each token, because each has its own limit; none is padding.
            lengths, device = self._arena.lengths, self._arena.device
            batch = RowBatch(count, lengths, causal=True, device=device)
            self._batches[absent] = batch.bind(
                [self._row] * count, starts=self.places(layer).tolist()
            )
        return self._batches[absent]

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
        store_rows(*new, *self._arena.layers[layer], self._batch_of(layer))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        self.queries = q[0]
        rows = self._arena.layers[layer]
        out, sums = row_attention(q.transpose(0, 1), *rows, self._batch_of(layer), layer)
        self.sums = sums[:, 0]
        return out.transpose(0, 1)


class ScoredSparsePositionView(SparsePositionView):
    """A sparse-position view that also records what its tokens attend to.

    columns: of each layer, float32 [heads, tokens], attention of all tokens so far, summed, to the
    first `seen` tokens of the row.
    """

    def __init__(self, arena: Arena, row: int, heads: int, seen: Sequence[int], *absent) -> None:
        super().__init__(arena, row, *absent)
        self.columns = [torch.zeros(heads, n, device=arena.device) for n in seen]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = super().attend(layer, q, k, v)
        columns, places = self.columns[layer], self.places(layer).to(q.device)
        keys = self._arena.layers[layer][0][self._row, :, : columns.shape[1]].float()
        queries = self.queries.float().unflatten(1, (len(keys), -1))  # [T, kv_heads, group, dim]
        scores = torch.einsum('tkgd,knd->tkgn', queries * q.shape[-1] ** -0.5, keys)
        weights = (scores.flatten(1, 2) - self.sums[..., None]).exp_()  # [T, heads, n]
        later = torch.arange(columns.shape[1], device=q.device) > places[:, None]
        columns += weights.masked_fill_(later[:, None], 0).sum(0)
        return out
