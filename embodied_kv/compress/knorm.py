"""Key norm: keys of small norm are kept, because queries attend to them (Devoto et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class KeyNorm(Method):
    """Equal budgets without queries. Rotary positions rotate keys and keep their norms."""

    name = 'knorm'
    reads_kv = True

    def scores(self, stats: Statistics) -> Tensor:
        if stats.keys is None:
            raise ValueError(f'{self.name} needs keys; put them in the statistics')
        return -stats.keys.float().norm(dim=-1)
