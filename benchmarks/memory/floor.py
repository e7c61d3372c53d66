"""The lower bound of a plan's time, from its operations and bytes and the limits of the machine.

A token that a layer computes passes through its matrices once and attends at least to the tokens
that were computed before it; a token that is loaded is read once, K and V. Head and question are
computed, too. Loads may run during the computation, so the floor is the larger of the two. Knows
counts and dimensions.
"""

from __future__ import annotations

import torch

from benchmarks.common.clock import Ceilings, in_turn
from benchmarks.common.physics import BYTES, layer_weights
from benchmarks.memory.asking import Reply
from embodied_kv.model.planner import PlannerConfig


def ceilings(n: int = 2048, repeats: int = 5) -> Ceilings:
    """Return the rates of float32 matrix products and of reading memory, the best of `repeats`.

    Reading is measured in products of one row.
    """
    a, b, row = torch.randn(n, n), torch.randn(n, n), torch.randn(1, n)
    weights = torch.zeros(16, n, n)

    def read() -> None:
        for weight in weights:
            torch.nn.functional.linear(row, weight)

    taken = in_turn(dict(product=lambda: a @ b, read=read), repeats, 'cpu')
    product, reading = (min(taken[name]) for name in ('product', 'read'))
    return Ceilings(2 * n**3 / product / 1e9, weights.nbytes / reading / 1e9)


def flops(config: PlannerConfig, reply: Reply) -> float:
    """Return the operations of all layers, for the prompt and for the units computed first."""
    b = config.backbone
    weights = layer_weights(b.width, b.mlp, b.heads, b.kv_heads, b.head_dim)
    rows = sum(reply.plan.computed) + reply.fresh * b.layers
    pairs = sum(tokens * (tokens + 1) / 2 for tokens in reply.plan.computed)
    return 2 * weights * rows + 4 * b.heads * b.head_dim * pairs


def loaded_bytes(config: PlannerConfig, reply: Reply) -> int:
    """Return the bytes of K and V of all loaded tokens."""
    b = config.backbone
    return sum(reply.plan.loaded) * 2 * b.kv_heads * b.head_dim * BYTES[config.dtype]


def floor_seconds(config: PlannerConfig, reply: Reply, machine: Ceilings) -> float:
    """Return the lower bound of the time (s) to the first token."""
    return machine.floor(flops(config, reply), loaded_bytes(config, reply))
