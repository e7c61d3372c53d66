"""StreamingLLM: the first tokens and the last ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics


@dataclass(frozen=True)
class StreamingLlm(Method):
    """Attention sinks and recent tokens (Xiao et al. 2023), equally many in every layer.

    sinks: number of first positions that are always kept; the last positions fill the rest.
    """

    name = 'streaming_llm'

    sinks: int = 4

    def scores(self, stats: Statistics) -> Tensor:
        position = torch.arange(stats.n, device=stats.columns.device)
        score = position.float().masked_fill(position < self.sinks, float('inf'))
        return score.expand(stats.layers, stats.kv_heads, -1)
