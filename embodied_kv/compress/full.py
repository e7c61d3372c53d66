"""No compression, as a method: the baseline of the others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics
from embodied_kv.compress.budget import check_keep_ratio


@dataclass(frozen=True)
class Full(Method):
    """Keeps every token, whatever the keep ratio."""

    name = 'full'

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        check_keep_ratio(keep_ratio)
        return [stats.n] * stats.layers

    def scores(self, stats: Statistics) -> Tensor:
        return stats.columns.new_zeros(stats.layers, stats.kv_heads, stats.n)
