"""Views that also score: they record the attention of the scoring queries in each layer.

Source: VL-Cache, sections 4.1 and 4.2, post-vision attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.dense import is_traced
from embodied_kv.kernels.score import KvSegment, post_vision_statistics
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite, TailAppend
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import StepInputs


class Scores:
    """The attention of the scoring queries of each slot to its prefix.

    columns: float32 [slots, layers, heads, tokens], attention to each position, summed over the
    queries. density: float32 [slots, layers, heads], share of visible entries that reach p times
    the maximum of their row.
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

    def record(
        self, layer: int, q: Tensor, segments: Sequence[KvSegment], queries: Tensor
    ) -> None:
        """Record one layer; see `kernels.score.post_vision_statistics`."""
        columns, density = post_vision_statistics(q, segments, self.p, queries)
        slots, _, tokens = columns.shape
        self.columns[:slots, layer, :, :tokens] = columns
        self.density[:slots, layer] = density


class _ScoringQueries:
    """The scoring queries of each slot: consecutive tokens, at most `most`."""

    def __init__(self, inputs: StepInputs, slots: int, most: int, device: torch.device) -> None:
        self._slots = torch.arange(slots, device=device)[:, None]
        self._positions = inputs.cut('scoring.positions', slots, most)
        self._spans = inputs.cut('scoring.spans', 2, slots)
        self.starts, self.counts = self._spans.device.unbind(0)

    @staticmethod
    def fields(slots: int, most: int) -> dict[str, tuple[int, type[np.generic]]]:
        return {
            'scoring.positions': (slots * most, np.int64),
            'scoring.spans': (2 * slots, np.int32),
        }

    def bind(self, ranges: Sequence[range]) -> None:
        spans, positions = self._spans.host, self._positions.host
        spans[:] = 0
        spans[:, : len(ranges)] = [[r.start for r in ranges], [len(r) for r in ranges]]
        last = np.maximum(spans.sum(0) - 1, 0)[:, None]  # those beyond are padding
        positions[:] = np.minimum(spans[0][:, None] + np.arange(positions.shape[1]), last)

    @property
    def buffers(self) -> list[Buffer]:
        parts = dict(positions=self._positions, spans=self._spans)
        return [Buffer(f'scoring.{name}', part.device) for name, part in parts.items()]

    def of(self, q: Tensor) -> Tensor:
        """Return the scoring queries of q [slots, tokens, heads, D], [slots, most, heads, D]."""
        return q[self._slots, self._positions.device]


class _Scored:
    """Mixin of a view that also scores what is stored; its inputs also have `scoring_fields`."""

    _scores: Scores
    _scoring: _ScoringQueries
    scoring_fields = staticmethod(_ScoringQueries.fields)

    def bind_queries(self, ranges: Sequence[range]) -> None:
        """Set the scoring queries of each slot; call it before `bind`, which sends them."""
        self._scoring.bind(ranges)

    def _record(self, layer: int, q: Tensor, segments: Sequence[KvSegment]) -> None:
        """Score one layer. q: of all tokens. segments: the keys that they see."""
        self._scores.record(layer, self._scoring.of(q), segments, self._scoring.counts)


class ScoredPrefixWrite(_Scored, PrefixWrite):
    """Writes a prefix and scores it by some of its queries, which see all of its valid keys.

    most: upper bound of the scoring queries of a slot.
    """

    def __init__(
        self,
        arena: Arena,
        slots: int,
        tokens: int,
        scores: Scores,
        most: int,
        inputs: StepInputs | None = None,
    ) -> None:
        most = min(most, tokens)
        inputs = inputs or StepInputs(
            arena.device, {**self.fields(arena, slots), **self.scoring_fields(slots, most)}
        )
        super().__init__(arena, slots, tokens, inputs)
        self._scores = scores
        self._scoring = _ScoringQueries(inputs, slots, most, arena.device)

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, *self._scoring.buffers]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        self._record(layer, q, [KvSegment(k.transpose(1, 2), self._batch.counts)])


class ScoredTailAppend(_Scored, TailAppend):
    """Appends questions to empty decode rows, and scores by all queries of each question.

    The queries see the valid keys of the prefix row, and the question up to themselves.
    """

    def __init__(
        self,
        prefixes: Arena,
        decode_kv: Arena,
        slots: int,
        tokens: int,
        scores: Scores,
        inputs: StepInputs | None = None,
    ) -> None:
        fields = self.fields(prefixes, decode_kv, slots, tokens)
        own = self.scoring_fields(slots, tokens)
        inputs = inputs or StepInputs(prefixes.device, {**fields, **own})
        super().__init__(prefixes, decode_kv, slots, tokens, inputs=inputs)
        self._prefixes, self._scores = prefixes, scores
        self._scoring = _ScoringQueries(inputs, slots, tokens, decode_kv.device)

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, *self._scoring.buffers]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        question = KvSegment(k.transpose(1, 2), self._tail.counts, self._scoring.starts)
        self._record(layer, q, [self._prefix_keys(layer), question])

    def _prefix_keys(self, layer: int) -> KvSegment:
        """Return the keys of each slot's prefix row; a single one is not copied on a CPU."""
        keys = self._prefixes.layers[layer][0]
        batch = self._prefix.whole
        if not keys.is_cuda and not is_traced() and len(batch.spans) == batch.slots == 1:
            ((_, row, _, _),) = batch.spans
            length = int(batch.lengths[0, 0])
            return KvSegment(keys[row : row + 1, :, :length], batch.lengths[0])
        return KvSegment(keys[batch.ids.clamp(min=0)], batch.lengths[0])
