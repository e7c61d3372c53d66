"""ZipCache-style scores: accumulated attention, normalised by the number of queries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class ZipCache(Method):
    """Normalised attention (He et al. 2024; 3.2), equal budgets; its quantisation is left out.

    Every query of a bidirectional prefix sees every position, so this is H2O up to a constant.
    """

    name = 'zipcache'
    queries = 'all'

    def scores(self, stats: Statistics) -> Tensor:
        return stats.grouped(stats.columns / stats.queries)
