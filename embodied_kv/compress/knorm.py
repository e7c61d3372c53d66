"""Keys of small norm stay: they are those that queries attend to (Devoto et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class KeyNorm(Method):
    """Equal budgets; no query is needed. Rotary positions turn keys, and leave their norms."""

    name = 'knorm'
    reads_kv = True

    def scores(self, stats: Statistics) -> Tensor:
        """Raises ValueError where the statistics have no keys."""
        if stats.keys is None:
            raise ValueError(f'{self.name} looks at keys: put them in the statistics')
        return -stats.keys.float().norm(dim=-1)
