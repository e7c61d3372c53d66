"""SnapKV: attention of a sliding window of the last queries, smoothed over adjacent positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class SnapKv(Method):
    """Attention of the last `window` queries, pooled over `kernel` positions (Li et al. 2024).

    pooling: 'avg' (default of its code) or 'max' (of its paper). Scores are pooled for each head,
    then averaged over the heads of a group. Budgets are equal. The recent tokens that are always
    kept are the share `recent`, as in every method here, not the window.
    """

    name = 'snapkv'
    queries = 'window'

    window: int = 32
    kernel: int = 5
    pooling: str = 'avg'

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f'window must be >= 1 query (got {self.window})')
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f'kernel must be odd and >= 1 (got {self.kernel})')
        if self.pooling not in ('avg', 'max'):
            raise ValueError(f"pooling must be 'avg' or 'max' (got {self.pooling!r})")

    def scores(self, stats: Statistics) -> Tensor:
        pool = F.avg_pool1d if self.pooling == 'avg' else F.max_pool1d
        return stats.grouped(pool(stats.columns, self.kernel, stride=1, padding=self.kernel // 2))
