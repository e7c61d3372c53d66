"""Compression of stored units and of the planner's row, by the methods of `compress`.

A unit is compressed when it is stored, so before any question: by the attention of its own tokens.
Each segment keeps the same share of its tokens, at least one, and each KV head its own choice.

The prompt in the row is compressed once the answer has begun. Question and answer are appended
again in one pass that records what they attend to, as for the streams of the engine; then each
layer keeps the best tokens before the question, without gaps. Question, answer and logical
positions do not change: the stored keys are rotated already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics
from embodied_kv.compress.registry import METHODS
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.sparse_position_view import ScoredSparsePositionView
from embodied_kv.memory.prefill import Step
from embodied_kv.memory.segment import check_choice
from embodied_kv.model.planner import Planner

# The methods that need no question.
UNIT_METHODS = tuple(name for name, made in METHODS.items() if made.queries in (None, 'all'))


def unit_method(name: str) -> Method:
    """Return a method for units. Raise ValueError if it is unknown or needs a question."""
    check_choice('unit_compress', name, UNIT_METHODS)
    return METHODS[name]()


def unit_attention(
    model: Planner, arena: Arena, ids: Sequence[int], step: Step, block: int
) -> Tensor:
    """Return the attention that the tokens in row 0 receive, float32 [layers, heads, tokens].

    `block` is the number of tokens of a step.
    """
    layers, heads = len(arena.layers), model.config.backbone.heads
    view = ScoredSparsePositionView(arena, 0, heads, [len(ids)] * layers)
    _append(model, view, ids, 0, step, block)
    return torch.stack(view.columns)


def compress_unit(
    k: Tensor,
    v: Tensor,
    lengths: Sequence[int],
    columns: Tensor | None,
    method: Method,
    keep_ratio: float,
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return K and V [layers, kv_heads, tokens, head_dim] of the kept tokens, and their lengths.

    `lengths` has the tokens of each segment, and `columns` the result of `unit_attention`, None if
    the method needs none.
    """
    layers, kv_heads, total, _ = k.shape
    if columns is None:
        columns = Statistics.unscored(layers, kv_heads, total, k.device).columns
    visible = torch.arange(total, 0, -1, device=k.device)  # number of queries that see each token
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


def compress_row(
    model: Planner,
    arena: Arena,
    ids: Sequence[int],
    question_at: int,
    absent: Sequence[int],
    method: Method,
    keep_ratio: float,
    step: Step,
    block: int,
) -> tuple[int, ...]:
    """Keep a share of the tokens of row 0 before `question_at`; return what each layer lacks.

    `ids` has the tokens from `question_at` on, whose KV is in the row, and `absent` the number of
    tokens that each layer lacks already. A step computes `block` tokens in all layers, or the
    choice of one layer.
    """
    seen = [question_at - lacks for lacks in absent]
    view = ScoredSparsePositionView(arena, 0, model.config.backbone.heads, seen, absent)
    _append(model, view, ids, question_at, step, block)
    wanted = keep_ratio * question_at
    keep = partial(_keep, arena, behind=len(ids), method=method, wanted=wanted)
    return tuple(
        step(partial(keep, layer, columns, lacks=lacks))
        for layer, (columns, lacks) in enumerate(zip(view.columns, absent, strict=True))
    )


def _append(
    model: Planner,
    view: ScoredSparsePositionView,
    ids: Sequence[int],
    at: int,
    step: Step,
    block: int,
) -> None:
    """Compute tokens from position `at` on, in steps of `block` tokens."""

    @torch.inference_mode()
    def append(tokens: Tensor, positions: Tensor) -> None:
        device = model.device
        model(tokens[None].to(device), positions[None].to(device), view.bind(positions))

    tokens, positions = torch.tensor(ids), torch.arange(at, at + len(ids))
    for part in zip(tokens.split(block), positions.split(block), strict=True):
        step(partial(append, *part))


@torch.inference_mode()
def _keep(
    arena: Arena,
    layer: int,
    columns: Tensor,
    lacks: int,
    behind: int,
    method: Method,
    wanted: float,
) -> int:
    """Keep about `wanted` of a layer's first tokens and all after them; return what it lacks."""
    n, kv_heads = columns.shape[1], arena.k.shape[2]
    if not n:
        return lacks
    keys, values = (part[0, :, :n][None] for part in arena.layers[layer])
    dense = torch.ones(1, len(columns))
    stats = Statistics(columns[None], dense, kv_heads, behind, keys=keys, values=values)
    (kept,) = method.select(stats, min(1.0, max(0.01, wanted / n)))  # [kv_heads, tokens]
    if kept.shape[1] == n:
        return lacks
    for part in arena.layers[layer]:
        row, heads = part[0], torch.arange(kv_heads, device=part.device)[:, None]
        together = torch.cat([row[heads, kept], row[:, n : n + behind]], 1)
        row[:, : together.shape[1]] = together
    return lacks + n - kept.shape[1]
