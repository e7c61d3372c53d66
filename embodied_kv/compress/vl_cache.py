"""VL-Cache: budgets by the density of post-vision attention, tokens by its sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics
from embodied_kv.compress.budget import by_density


@dataclass(frozen=True)
class VlCache(Method):
    """Sparsity-aware budgets (4.1, Algorithm 1) and post-vision attention (4.2).

    The text behind the images scores text and vision by the same measure. A dense layer keeps more
    than a sparse one.
    """

    name = 'vl_cache'
    queries = 'post_vision'

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        return by_density(stats.dense, keep_ratio, stats.n)

    def scores(self, stats: Statistics) -> Tensor:
        return stats.grouped(stats.columns)
