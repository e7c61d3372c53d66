"""Exact attention statistics of a prefix, by any of its own tokens and of a question behind it.

Serving computes them in one pass, for the queries of one method. Here the queries of every token
are kept, so that all methods score the same prefill. Knows queries and keys. Does not know a
method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.base import Statistics
from embodied_kv.kernels.score import KvSegment, post_vision_statistics, visible_entries
from embodied_kv.kv.views import PrefixWrite, TailAppend


@dataclass(frozen=True, eq=False)
class RecordedTokens:
    """Queries and keys of a run of tokens, by layer.

    queries: [tokens, heads, head_dim]. keys: [kv_heads, tokens, head_dim].
    """

    queries: Sequence[Tensor]
    keys: Sequence[Tensor]

    def __len__(self) -> int:
        return self.keys[0].shape[1]


class RecordedPrefix(PrefixWrite):
    """Writes a prefix and keeps its queries, layer by layer."""

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        self.queries = [*getattr(self, 'queries', ()), q[0]]


class RecordedAppend(TailAppend):
    """Appends to decode KV and keeps the queries, layer by layer."""

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().store(layer, q, k, v)
        self.queries = [*getattr(self, 'queries', ()), q[0]]


class Scorer:
    """Statistics of one prefix, all of whose tokens see all of it.

    The statistics by its own queries are computed once for all questions.
    """

    def __init__(self, prefix: RecordedTokens) -> None:
        self.prefix = prefix
        self._own: dict[tuple[range, float], tuple[Tensor, Tensor, int]] = {}

    def statistics(
        self, asked: range, p: float = 0.01, question: RecordedTokens | None = None
    ) -> Statistics:
        """Return the statistics by the queries `asked`: positions in prefix, then question.

        Every query sees the whole prefix, and the question up to itself. p: see equation 1.
        """
        n = len(self.prefix)
        parts = []
        own = range(min(asked.start, n), min(asked.stop, n))
        if own:
            if (own, p) not in self._own:
                self._own[own, p] = self._taken(own, p)
            parts.append(self._own[own, p])
        after = range(max(asked.start - n, 0), max(asked.stop - n, 0))
        if after:
            parts.append(self._taken(after, p, question))
        kv_heads = self.prefix.keys[0].shape[0]
        if not parts:
            layers = len(self.prefix.keys)
            return Statistics.unscored(layers, kv_heads, n, self.prefix.keys[0].device)
        visible = sum(seen for _, _, seen in parts)
        columns = sum(columns for columns, _, _ in parts)
        density = sum(density.double() * (seen / visible) for _, density, seen in parts).float()
        return Statistics(columns, density, kv_heads, len(asked))

    def _taken(
        self, asked: range, p: float, question: RecordedTokens | None = None
    ) -> tuple[Tensor, Tensor, int]:
        """Return the statistics by these tokens of the question, or of the prefix itself.

        Columns [layers, heads, n], density [layers, heads], and how many entries of a head they
        see.
        """
        asking, taken = question or self.prefix, []
        for layer, keys in enumerate(self.prefix.keys):
            segments = [_segment(keys)]
            if question is not None:
                segments.append(_segment(question.keys[layer], asked.start))
            q = asking.queries[layer][asked.start : asked.stop]
            taken.append(post_vision_statistics(q[None], segments, p))
        seen = sum(int(visible_entries(s.lengths, len(asked), s.starts)) for s in segments)
        columns, density = zip(*taken, strict=True)
        return torch.cat(columns), torch.cat(density), seen


def attention(q: Tensor, prefix: Tensor, own: Tensor, start: int) -> Tensor:
    """Return softmax attention over a prefix and a causal segment.

    Query t sees 0 .. start + t of the segment. q: [queries, heads, head_dim]; prefix, own: keys
    [kv_heads, tokens, head_dim]. Returns [heads, queries, tokens of both], 0 where hidden.
    """
    queries, heads, dim = q.shape
    keys = torch.cat([prefix, own], 1).repeat_interleave(heads // prefix.shape[0], 0).float()
    scores = q.transpose(0, 1).float() @ keys.mT * dim**-0.5
    position = torch.arange(keys.shape[1], device=q.device) - prefix.shape[1]
    limits = start + torch.arange(queries, device=q.device)
    return scores.masked_fill(position > limits[:, None], float('-inf')).softmax(-1)


def _segment(keys: Tensor, start: int | None = None) -> KvSegment:
    """Return a segment of keys [kv_heads, tokens, head_dim], all of them valid."""

    def one(value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int32, device=keys.device)

    return KvSegment(keys[None], one(keys.shape[1]), None if start is None else one(start))
