"""PyramidKV: SnapKV's scores, and budgets that fall linearly over the layers."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.compress.base import Statistics
from embodied_kv.compress.budget import BETA, pyramid
from embodied_kv.compress.snapkv import SnapKv


@dataclass(frozen=True)
class PyramidKv(SnapKv):
    """SnapKV with the budgets of `pyramid` (Cai et al. 2024)."""

    name = 'pyramidkv'

    beta: float = BETA

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise ValueError(f'beta must be >= 1 (got {self.beta}): the budgets would rise')

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        return pyramid(stats.dense, keep_ratio, stats.n, self.beta)
