"""Views that also look: what the scoring queries pay attention to, layer by layer, as they pass.

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
    """What the scoring queries of each slot's prefix paid attention to.

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
        self._at = torch.zeros(slots, most, dtype=torch.int64, device=device)
        self._spans = torch.zeros(2, slots, dtype=torch.int32, device=device)
        self.starts, self.counts = self._spans.unbind(0)

    def bind(self, ranges: Sequence[range]) -> None:
        spans = np.zeros((2, len(self._slots)), np.int32)
        spans[:, : len(ranges)] = [[r.start for r in ranges], [len(r) for r in ranges]]
        self._spans.copy_(torch.from_numpy(spans))
        at = spans[0][:, None] + np.arange(self._at.shape[1])
        last = np.maximum(spans.sum(0) - 1, 0)[:, None]  # what is beyond is counted as padding
        self._at.copy_(torch.from_numpy(np.minimum(at, last)))

    @property
    def buffers(self) -> list[Buffer]:
        return [Buffer('asking.at', self._at), Buffer('asking.spans', self._spans)]

    def of(self, q: Tensor) -> Tensor:
        """q [slots, tokens, heads, D] -> the scoring queries, [slots, most, heads, D]."""
        return q[self._slots, self._at]


class ScoredPrefixWrite(PrefixWrite):
    """Writes a prefix, scored by some of its own queries: all valid keys are visible to them.

    most: scoring queries of a slot at most.
    """

    def __init__(self, arena: Arena, slots: int, tokens: int, scores: Scores, most: int) -> None:
        super().__init__(arena, slots, tokens)
        self._scores, self._asking = (
            scores,
            _ScoringQueries(slots, min(most, tokens), arena.device),
        )

    def ask(self, ranges: Sequence[range]) -> None:
        """Positions of each slot's scoring queries."""
        self._asking.bind(ranges)

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, *self._asking.buffers]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        keys = KvSegment(k.transpose(1, 2), self._batch.counts)
        self._scores.take(layer, self._asking.of(q), [keys], self._asking.counts)


class ScoredTailAppend(TailAppend):
    """Appends questions to empty tails, each scored by its own queries.

    They see the valid keys of the prefix row and the question up to themselves.
    """

    def __init__(
        self, prefixes: Arena, tails: Arena, slots: int, tokens: int, scores: Scores, most: int
    ) -> None:
        super().__init__(prefixes, tails, slots, tokens)
        self._prefixes = prefixes
        self._scores, self._asking = (
            scores,
            _ScoringQueries(slots, min(most, tokens), tails.device),
        )

    def ask(self, ranges: Sequence[range]) -> None:
        """Places of each slot's scoring queries in its question."""
        self._asking.bind(ranges)

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, *self._asking.buffers]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        question = KvSegment(k.transpose(1, 2), self._tail.counts, self._asking.starts)
        segments = [self._prefix_keys(layer), question]
        self._scores.take(layer, self._asking.of(q), segments, self._asking.counts)

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
