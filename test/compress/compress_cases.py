"""Random statistics."""

import torch

from embodied_kv.compress.base import Statistics


def make_statistics(layers=6, heads=4, kv_heads=2, n=200, queries=20, seed=0, **others):
    """Return statistics as after a softmax: the columns of a head sum to the number of queries."""
    g = torch.Generator().manual_seed(seed)
    columns = (3 * torch.randn(layers, heads, n, generator=g)).softmax(-1) * queries
    density = torch.rand(layers, heads, generator=g)
    keys = torch.randn(layers, kv_heads, n, 8, generator=g)
    return Statistics(columns, density, kv_heads, queries, **dict(keys=keys) | others)
