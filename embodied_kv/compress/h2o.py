"""H2O (heavy hitters of all queries) and ZipCache, which selects the same tokens here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class H2o(Method):
    """Attention accumulated over all queries (Zhang et al. 2024; VL-Cache, 3.2), equal budgets."""

    name = 'h2o'
    queries = 'all'

    def scores(self, stats: Statistics) -> Tensor:
        return stats.grouped(stats.columns)


@dataclass(frozen=True)
class ZipCache(H2o):
    """Attention divided by the queries that see a token (He et al. 2024; VL-Cache, 3.2).

    As H2O, because every query of a bidirectional prefix sees every token; without quantisation.
    """

    name = 'zipcache'
