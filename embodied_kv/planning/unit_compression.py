"""Which tokens of a unit are kept: those that count by what the unit says itself.

Knows a unit's K and V in the planner's row, and a method of `compress`. Does not know questions:
who will ask is not known when a unit is kept. Each segment keeps the same share of its tokens, a
token at least, and as many in each layer, of each KV head its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics
from embodied_kv.compress.registry import METHODS
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.sparse_position_view import ScoredSparsePositionView
from embodied_kv.memory.prefill import Step
from embodied_kv.model.planner import Planner

# Scored by what a unit has by itself.
FOR_UNITS = tuple(name for name, made in METHODS.items() if made.queries in (None, 'all'))


def unit_method(name: str) -> Method:
    """Raises ValueError for an unknown one, one that needs a question, and one of kvpress."""
    if name not in FOR_UNITS:
        raise ValueError(
            f'no method {name!r} for units, which are kept before a question is asked; there are: '
            f'{", ".join(FOR_UNITS)}'
        )
    return METHODS[name]()


def own_attention(
    model: Planner, arena: Arena, ids: Sequence[int], step: Step, block: int
) -> Tensor:
    """What the tokens in row 0 attend to, float32 [layers, heads, tokens]; block: of a step."""
    layers, heads = len(arena.layers), model.config.backbone.heads
    view = ScoredSparsePositionView(arena, 0, heads, [len(ids)] * layers)
    tokens, positions = torch.tensor(ids), torch.arange(len(ids))

    @torch.inference_mode()
    def append(some: Tensor, at: Tensor) -> None:
        model(some[None].to(arena.device), at[None].to(arena.device), view.bind(at))

    for some, at in zip(tokens.split(block), positions.split(block), strict=True):
        step(lambda some=some, at=at: append(some, at))
    return torch.stack(view.columns)


def thinned(
    k: Tensor,
    v: Tensor,
    lengths: Sequence[int],
    columns: Tensor | None,
    method: Method,
    keep_ratio: float,
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """K and V [layers, kv_heads, tokens, head_dim] of what is kept, and tokens of each segment.

    columns: as `own_attention`; None: the method needs none.
    """
    layers, kv_heads, total, _ = k.shape
    if columns is None:
        columns = Statistics.unscored(layers, kv_heads, total, k.device).columns
    visible = torch.arange(total, 0, -1, device=k.device)  # queries that see each token
    density = torch.ones(columns.shape[:2], device=k.device)
    kept, ends = [], torch.tensor(lengths).cumsum(0).tolist()
    for end, length in zip(ends, lengths, strict=True):
        own = slice(end - length, end)
        stats = Statistics(
            columns[:, :, own], density, kv_heads, total, visible[own], k[:, :, own], v[:, :, own]
        )
        tokens = max(1, round(keep_ratio * length))
        chosen = method.select(stats, max(0.01, tokens / length))  # layers of [kv_heads, tokens]
        kept.append(torch.stack(chosen) + own.start)
    index = torch.cat(kept, 2)[..., None]
    thin = (part.gather(2, index.expand(-1, -1, -1, part.shape[3])) for part in (k, v))
    return *thin, tuple(part.shape[2] for part in kept)
