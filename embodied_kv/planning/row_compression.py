"""What is kept of a prompt in the planner's row, once the answer has begun.

Knows the row, a plan and a method of `compress`. Does not know memory. Question and answer are
appended again in one pass that scores what they attend to, as for the engine's streams (deferred
choice); then each layer keeps the best of what lies before the question, close together. Question
and answer stay whole, and so do logical positions: keys are turned already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.sparse_position_view import ScoredSparsePositionView
from embodied_kv.memory.prefill import Step
from embodied_kv.model.planner import Planner


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
    """Row 0 keeps that share of the tokens before `question_at` -> what each layer lacks now.

    ids: of the tokens from there on, whose KV lies in the row. absent: what each layer lacks
    already. block: tokens that one step computes in all layers; what a layer keeps is a step.
    """
    seen = [question_at - lacks for lacks in absent]
    view = ScoredSparsePositionView(arena, 0, model.config.backbone.heads, seen, absent)
    positions = torch.arange(question_at, question_at + len(ids))
    tokens = torch.tensor(ids)
    for at, some in zip(positions.split(block), tokens.split(block), strict=True):
        step(lambda at=at, some=some: _append(model, view, at, some))
    wanted = keep_ratio * question_at
    keep = partial(_keep, arena, behind=len(ids), method=method, wanted=wanted)
    return tuple(
        step(partial(keep, layer, columns, lacks=lacks))
        for layer, (columns, lacks) in enumerate(zip(view.columns, absent, strict=True))
    )


@torch.inference_mode()
def _append(
    model: Planner, view: ScoredSparsePositionView, positions: Tensor, ids: Tensor
) -> None:
    device = model.device
    model(ids[None].to(device), positions[None].to(device), view.bind(positions))


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
    """A layer keeps about `wanted` of its first tokens, and all behind them -> what it lacks."""
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
