"""The least that a plan can take, from its operations and bytes and what the machine does at best.

A token that a layer computes goes through its matrices once, and looks at no fewer tokens than
were computed before it; one that is loaded is read once, K and V. Head and question are computed,
too. Loads may run beside the computation, so the floor is the larger of the two. Knows counts and
dimensions.
"""

from __future__ import annotations

import torch

from benchmarks.common.clock import Ceilings, in_turn
from benchmarks.common.physics import BYTES, layer_weights
from benchmarks.memory.asking import Reply
from embodied_kv.model.planner import PlannerConfig


def ceilings(n: int = 2048, repeats: int = 5) -> Ceilings:
    """Of float32 matrix products, and of reading in products of one row, at best of so many."""
    a, b, row = torch.randn(n, n), torch.randn(n, n), torch.randn(1, n)
    weights = torch.zeros(16, n, n)

    def read() -> None:
        for weight in weights:
            torch.nn.functional.linear(row, weight)

    taken = in_turn(dict(product=lambda: a @ b, read=read), repeats, 'cpu')
    product, reading = (min(taken[name]) for name in ('product', 'read'))
    return Ceilings(2 * n**3 / product / 1e9, weights.nbytes / reading / 1e9)


def flops(config: PlannerConfig, reply: Reply) -> float:
    """Of all layers, for the prompt and for units whose KV was computed first."""
    b = config.backbone
    weights = layer_weights(b.width, b.mlp, b.heads, b.kv_heads, b.head_dim)
    rows = sum(reply.plan.computed) + reply.fresh * b.layers
    pairs = sum(tokens * (tokens + 1) / 2 for tokens in reply.plan.computed)
    return 2 * weights * rows + 4 * b.heads * b.head_dim * pairs


def loaded_bytes(config: PlannerConfig, reply: Reply) -> int:
    """K and V of all tokens that were loaded."""
    b = config.backbone
    return sum(reply.plan.loaded) * 2 * b.kv_heads * b.head_dim * BYTES[config.dtype]


def floor_seconds(config: PlannerConfig, reply: Reply, machine: Ceilings) -> float:
    """To the first token."""
    return machine.floor(flops(config, reply), loaded_bytes(config, reply))
