"""Random tokens: a baseline of the methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class Random(Method):
    """Equal budgets, and the same random positions for every prefix of one length and seed."""

    name = 'random'

    seed: int = 0

    def scores(self, stats: Statistics) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        scores = torch.rand(stats.layers, stats.kv_heads, stats.n, generator=generator)
        return scores.to(stats.columns.device)
