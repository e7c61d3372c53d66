"""ZipCache-style scores: accumulated attention, normalised by the queries that see it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class ZipCache(Method):
    """Normalised attention (He et al. 2024; 3.2), equal budgets; its quantisation is left out.

    The sum of each column is divided by the number of queries that can see it, `stats.visible`. In
    a bidirectional prefix every query sees every position, so this is H2O up to a constant and
    keeps the same tokens; it differs where a part of the attention is causal.
    """

    name = 'zipcache'
    queries = 'all'

    def scores(self, stats: Statistics) -> Tensor:
        seen = stats.queries if stats.visible is None else stats.visible.clamp(min=1)
        return stats.grouped(stats.columns / seen)
