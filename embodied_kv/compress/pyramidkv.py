"""PyramidKV: SnapKV's scores, and budgets that fall from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.compress.base import Statistics
from embodied_kv.compress.budget import apportion, floor_budget, total_budget
from embodied_kv.compress.snapkv import SnapKv


@dataclass(frozen=True)
class PyramidKv(SnapKv):
    """Budgets on a line from the first layer to the last (Cai et al. 2024).

    The last layer gets 1 / beta of the mean, the first as much more than the mean as the last gets
    less. A line that would leave [floor, n] is made flatter about its mean, as in its code, so the
    sum is the total of every method, exactly.
    """

    name = 'pyramidkv'

    beta: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise ValueError(f'beta is {self.beta}: below 1 the budgets would rise')

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        layers, n, floor = stats.layers, stats.n, floor_budget(stats.n)
        total = total_budget(keep_ratio, layers, n)
        mean = total / layers
        slope = min(mean - max(mean / self.beta, floor), n - mean)  # first - mean = mean - last
        steps = max(1, layers - 1)
        budgets = [mean + slope * (1 - 2 * layer / steps) for layer in range(layers)]
        return apportion(budgets if layers > 1 else [mean], total, floor, n)
