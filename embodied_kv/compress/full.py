"""No compression, as a method: the baseline of the others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class Full(Method):
    """Keeps every token, whatever the keep ratio."""

    name = 'full'

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        return [stats.n] * stats.layers

    def scores(self, stats: Statistics) -> Tensor:
        return stats.columns.new_zeros(stats.layers, stats.kv_heads, stats.n)
