"""H2O: heavy hitters of all queries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class H2o(Method):
    """Attention accumulated over all queries (Zhang et al. 2024; 3.2), equal budgets."""

    name = 'h2o'
    queries = 'all'

    def scores(self, stats: Statistics) -> Tensor:
        return stats.grouped(stats.columns)
