"""Views that also score: what the scoring queries attend to, taken layer by layer.

The same writing and reading as `kv.views`, and beside it the statistics that a compression method
chooses tokens by. Knows queries and positions. Does not know a method.

Source: VL-Cache, sections 4.1 and 4.2: post-vision attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.score import KvSegment, post_vision_statistics
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite, TailAppend
from embodied_kv.runtime.buffer import Buffer


class Scores:
    """What the scoring queries of each slot attended to in its prefix.

    columns: float32 [slots, layers, heads, tokens], attention that each position got, summed over
    the queries. density: float32 [slots, layers, heads], share of visible entries that reach p
    times their row's maximum.
    """

    def __init__(
        self, slots: int, layers: int, heads: int, tokens: int, p: float, device: torch.device
    ) -> None:
        self.columns = torch.zeros(slots, layers, heads, tokens, device=device)
        self.density = torch.zeros(slots, layers, heads, device=device)
        self.p = p

    @property
    def buffers(self) -> list[Buffer]:
        return [Buffer('columns', self.columns), Buffer('density', self.density)]

    def take(self, layer: int, q: Tensor, segments: Sequence[KvSegment], queries: Tensor) -> None:
        """Of one layer; see `kernels.score.post_vision_statistics`."""
        columns, density = post_vision_statistics(q, segments, self.p, queries)
        slots, _, tokens = columns.shape
        self.columns[:slots, layer, :, :tokens] = columns
        self.density[:slots, layer] = density


class _ScoringQueries:
    """Which of a slot's tokens are scoring queries: neighbours, at most `most` of them."""

    def __init__(self, slots: int, most: int, device: torch.device) -> None:
        self._slots = torch.arange(slots, device=device)[:, None]
        self._positions = torch.zeros(slots, most, dtype=torch.int64, device=device)
        self._spans = torch.zeros(2, slots, dtype=torch.int32, device=device)
        self.starts, self.counts = self._spans.unbind(0)

    def bind(self, ranges: Sequence[range]) -> None:
        spans = np.zeros((2, len(self._slots)), np.int32)
        spans[:, : len(ranges)] = [[r.start for r in ranges], [len(r) for r in ranges]]
        self._spans.copy_(torch.from_numpy(spans))
        positions = spans[0][:, None] + np.arange(self._positions.shape[1])
        last = np.maximum(spans.sum(0) - 1, 0)[:, None]  # what is beyond is counted as padding
        self._positions.copy_(torch.from_numpy(np.minimum(positions, last)))

    @property
    def buffers(self) -> list[Buffer]:
        parts = dict(positions=self._positions, spans=self._spans)
        return [Buffer(f'scoring.{name}', memory) for name, memory in parts.items()]

    def of(self, q: Tensor) -> Tensor:
        """q [slots, tokens, heads, D] -> the scoring queries, [slots, most, heads, D]."""
        return q[self._slots, self._positions]


class _Scored:
    """Makes a scoring view of the view that it is mixed into: whatever is stored is also scored.

    The view says by `_segments` which keys its scoring queries see.
    """

    _scores: Scores
    _scoring: _ScoringQueries

    def bind_queries(self, ranges: Sequence[range]) -> None:
        """Which of each slot's tokens are its scoring queries."""
        self._scoring.bind(ranges)

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, *self._scoring.buffers]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        segments = self._segments(layer, k.transpose(1, 2))
        self._scores.take(layer, self._scoring.of(q), segments, self._scoring.counts)

    def _segments(self, layer: int, k: Tensor) -> list[KvSegment]:
        """k: of the new tokens, [slots, kv_heads, tokens, head_dim]."""
        raise NotImplementedError


class ScoredPrefixWrite(_Scored, PrefixWrite):
    """Writes a prefix, scored by some of its own queries, which see all of its valid keys.

    most: scoring queries of a slot at most.
    """

    def __init__(self, arena: Arena, slots: int, tokens: int, scores: Scores, most: int) -> None:
        super().__init__(arena, slots, tokens)
        self._scores = scores
        self._scoring = _ScoringQueries(slots, min(most, tokens), arena.device)

    def _segments(self, layer: int, k: Tensor) -> list[KvSegment]:
        return [KvSegment(k, self._batch.counts)]


class ScoredTailAppend(_Scored, TailAppend):
    """Appends questions to empty decode rows, each scored by its own queries.

    They see the valid keys of the prefix row and the question up to themselves.
    """

    def __init__(
        self, prefixes: Arena, decode_kv: Arena, slots: int, tokens: int, scores: Scores, most: int
    ) -> None:
        super().__init__(prefixes, decode_kv, slots, tokens)
        self._prefixes, self._scores = prefixes, scores
        self._scoring = _ScoringQueries(slots, min(most, tokens), decode_kv.device)

    def _segments(self, layer: int, k: Tensor) -> list[KvSegment]:
        question = KvSegment(k, self._tail.counts, self._scoring.starts)
        return [self._prefix_keys(layer), question]

    def _prefix_keys(self, layer: int) -> KvSegment:
        """Of each slot's prefix row; on a CPU no copy is made of a single one."""
        keys = self._prefixes.layers[layer][0]
        arena, batch = self._prefixes, self._prefix.whole
        if not keys.is_cuda and len(batch.rows) == 1:
            (row,) = batch.rows
            length = int(arena.lengths[layer, row])
            counts = torch.full((1,), length, dtype=torch.int32)
            return KvSegment(keys[row : row + 1, :, :length], counts)
        ids = batch.ids.clamp(min=0)
        return KvSegment(keys[ids], arena.device_lengths[layer][ids])
