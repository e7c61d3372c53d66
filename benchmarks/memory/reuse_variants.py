"""Methods of KV reuse and settings of KEEP that the node does not have, for comparison.

- CacheBlend (Yao et al. 2025) by token and by segment, and EPIC (Hu et al. 2024).
- KEEP with other hops, other shares by layer, without `restart`, and with the attention of all
  tokens: with 'directed', 'falling', `restart` 0 and `scoring_tokens` 0 it is KEEP as published.

`VariantConfig` adds their numbers to the parameters of planning, and `variant_method` reads it.
`ComparingPrefill` is the prefill that also gives CacheBlend the deviation of the keys.

Source: KEEP, section 4.2: the first layer computes all segments, later layers a decreasing share
r_i. The paper does not state its shares; SCHEDULES are three ways to spread the same mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.memory.load_policies import BALANCED, POLICIES
from embodied_kv.memory.importance import (
    RESTART,
    Importance,
    highest,
    importance,
    normalised,
    share,
)
from embodied_kv.memory.keep import SCORING_TOKENS, Keep, segment_attention
from embodied_kv.memory.prefill import LayerTokens, Prefill
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import LayerState, Reuse, always_computed
from embodied_kv.memory.segment import check_choice
from embodied_kv.model.planner import Planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.costs import KEEP
from embodied_kv.planning.planner_row import reuse_method

# How a hop reads attention between segments: without that of a segment to itself, with it, in both
# directions, or in both directions with the scores of all hops added.
PROPAGATIONS = ('directed', 'diagonal', 'symmetric', 'accumulated')
GRANULARITIES = ('token', 'segment')
# The same share in each layer but the first; from 1.5 to 0.5 times that share (as the gradual
# filtering of CacheBlend, section 4.3 of that paper); decay^i in layer i.
SCHEDULES = ('even', 'gradual', 'falling')


@dataclass(frozen=True)
class Schedule:
    """The share of the segments that each layer computes: 1 first, then never increasing."""

    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a >= b for a, b in zip(self.ratios, self.ratios[1:], strict=False))
        if not self.ratios or self.ratios[0] != 1 or not falling or not self.ratios[-1] >= 0:
            raise ValueError(f'ratios must start at 1 and fall to >= 0 (got {self.ratios})')

    @property
    def average(self) -> float:
        """Return the paper's r: the mean over the layers."""
        return math.fsum(self.ratios) / len(self.ratios)


def named_schedule(name: str, layers: int, average: float) -> Schedule:
    """Return the schedule of that name and mean share.

    Raises:
        ValueError: The name is unknown, or the layers cannot reach the mean: the first layer alone
            makes 1 / layers.
    """
    check_choice('recompute_schedule', name, SCHEDULES)
    if not 1 / layers <= average <= 1:
        raise ValueError(
            f'recompute_ratio must be in [{1 / layers:.4g}, 1] with {layers} layers '
            f'(got {average})'
        )
    if name == 'falling':
        low, high = 0.0, 1.0
        while (middle := (low + high) / 2) not in (low, high):
            below = _geometric(layers, middle).average < average
            low, high = (middle, high) if below else (low, middle)
        return _geometric(layers, high)
    even = round((layers * average - 1) / max(1, layers - 1), 12)  # 0.16, not the float below it
    more = min(even / 2, 1 - even) if name == 'gradual' and layers > 2 else 0.0
    parts = (i / max(1, layers - 2) for i in range(layers - 1))
    return Schedule((1.0, *(even + more + (even - more - (even + more)) * part for part in parts)))


def _geometric(layers: int, decay: float) -> Schedule:
    return Schedule(tuple(decay**i for i in range(layers)))


@dataclass(frozen=True)
class Epic(Reuse):
    """The first tokens of every segment, in every layer (Hu et al. 2024)."""

    tokens: int = 1
    name = 'epic'

    def first(self, prompt: Prompt) -> Tensor:
        mask = always_computed(prompt)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            mask[start : start + min(self.tokens, len(piece.ids))] = True
        return mask


@dataclass(frozen=True)
class CacheBlend(Reuse):
    """The tokens whose keys differ most from the stored ones (Yao et al. 2025).

    The first layer computes everything. After it, `schedule` has the share of memory per layer,
    which is chosen among the tokens of the layer before by the deviation of the next layer's keys;
    a layer with the share of the one before keeps its tokens. With `segments`, whole segments are
    chosen by their mean deviation instead of single tokens.
    """

    schedule: Schedule
    segments: bool = False
    name, first_layer_full = 'cacheblend', True

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        before, ratio = self.schedule.ratios[state.layer : state.layer + 2]
        if ratio == before:
            return computed
        prompt, mask = state.prompt, always_computed(state.prompt)
        deviation = torch.full((prompt.length,), -torch.inf)
        deviation[state.positions] = state.deviation()
        if self.segments:
            means = [
                deviation[start : start + len(piece.ids)].mean() if piece.unit else -torch.inf
                for start, piece in zip(prompt.starts, prompt.pieces, strict=True)
            ]
            pieces = _most(torch.tensor(means), ratio, len(prompt.pieces))
            return mask | torch.isin(prompt.owner, pieces)
        memory = (~mask).nonzero()[:, 0]
        mask[memory[_most(deviation[memory], ratio, len(memory))]] = True
        return mask


@dataclass(frozen=True)
class VariedKeep(Keep):
    """KEEP with the shares of a schedule, and other hops; `ratio` is not used."""

    ratio: float = 0.0
    schedule: Schedule = Schedule((1.0,))
    restart: float = RESTART
    scoring_tokens: int = SCORING_TOKENS
    propagation: str = 'directed'

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        of_layer = replace(self, ratio=self.schedule.ratios[state.layer + 1])
        return Keep.after(of_layer, state, computed)

    def choice(self, state: LayerState, candidates: Sequence[int]) -> Importance:
        attention = segment_attention(state, self.scoring_tokens)
        given = self.ratio, candidates, self.hops, self.restart, self.propagation
        return walk(*attention, *given)


def walk(
    query: Tensor,
    between: Tensor,
    ratio: float,
    candidates: Sequence[int] | None = None,
    hops: int = 8,
    restart: float = 0.0,
    propagation: str = 'directed',
) -> Importance:
    """Return the result of `importance` with any of PROPAGATIONS; the defaults are the paper's.

    Raises ValueError as `importance`, and for an unknown propagation.
    """
    check_choice('propagation', propagation, PROPAGATIONS)
    checked = importance(query, between, ratio, candidates, hops, restart)
    if propagation == 'directed':
        return checked
    s = len(query)
    alive = np.full(s, candidates is None)
    alive[list(candidates or ())] = True
    rows = np.where(alive[:, None] & alive, between.detach().cpu().double().numpy(), 0)
    if propagation != 'diagonal':
        rows = (rows + rows.T) * (1 - np.eye(s))
    first = normalised(np.where(alive, query.detach().cpu().double().numpy(), 0))
    scores = total = first
    count = len(checked.relevant)
    relevant, stable, hop = highest(scores, alive, count), False, 0
    while not stable and hop < hops:
        spread = normalised(rows[relevant].sum(0))
        if not spread.any():  # the relevant segments attend to no other candidate
            spread = first
        hopped = normalised((1 - restart) * spread + restart * first)
        total = total + hopped if propagation == 'accumulated' else hopped
        scores = normalised(total)
        before, relevant = relevant, highest(scores, alive, count)
        stable, hop = np.array_equal(before, relevant), hop + 1
    return Importance(tuple(relevant.tolist()), tuple(scores.tolist()), hop, stable)


@dataclass(frozen=True, eq=False)
class ComparedState(LayerState):
    """deviation: squared distance of the next layer's keys from the stored ones, float [T]."""

    deviation: Callable[[], Tensor] | None = None


class ComparingPrefill(Prefill):
    """A prefill whose methods may also ask for the deviation of the next layer's keys."""

    def choice(self, reuse: Reuse, state: LayerState, tokens: LayerTokens) -> Tensor:
        deviation = partial(self._deviation, state.prompt, state.layer + 1, tokens)
        return super().choice(reuse, ComparedState(**vars(state), deviation=deviation), tokens)

    def _deviation(self, prompt: Prompt, layer: int, tokens: LayerTokens) -> Tensor:
        """Return the squared distance of each token's keys from the stored ones, float32 [T]."""
        positions = tokens.positions
        rope = self._model.rope(positions[None].to(self._arena.device))
        new = layer_keys(self._model, layer, tokens.hidden, rope)[0]  # [T, kv_heads, head_dim]
        found = torch.zeros(len(positions), device=new.device)
        for i, (piece, start) in enumerate(zip(prompt.pieces, prompt.starts, strict=True)):
            at = (positions >= start) & (positions < start + len(piece.ids))
            if piece.unit and at.any():
                k, _ = self.stored(prompt, i, layer)
                mine = at.to(new.device)
                old = k[:, (positions[at] - start).to(new.device)].transpose(0, 1)
                found[mine] = (new[mine] - old).float().square().sum((1, 2))
        return found.cpu()


def layer_keys(model: Planner, i: int, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Return the K [B, T, kv_heads, head_dim] that layer i stores for hidden [B, T, width]."""
    layer = model.backbone.layers[i]
    return layer.project(layer.attn_norm(hidden), rope)[1]


@dataclass(frozen=True)
class VariantConfig(PlanningConfig):
    """Parameters of planning, and those of the variants; the defaults are what KEEP does.

    recompute_schedule: one of SCHEDULES (keep, cacheblend). granularity: what cacheblend chooses.
    restart, propagation, scoring_tokens: of keep, see `walk` and `segment_attention`. epic_tokens:
    number of first tokens of each segment that epic recomputes. load_policy: of `load_policies`.
    """

    reuse_method: str = KEEP
    recompute_schedule: str = 'even'
    granularity: str = 'token'
    restart: float = RESTART
    propagation: str = 'directed'
    scoring_tokens: int = SCORING_TOKENS
    epic_tokens: int = 4
    load_policy: str = BALANCED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice('load_policy', self.load_policy, POLICIES)
        check_choice('propagation', self.propagation, PROPAGATIONS)
        check_choice('granularity', self.granularity, GRANULARITIES)


def variant_method(name: str, config: VariantConfig, layers: int) -> Reuse:
    """Return a new method of reuse: 'cacheblend', 'epic', or one of the node.

    Raises ValueError as `reuse_method`.
    """
    if name == 'epic':
        return Epic(config.epic_tokens)
    if name not in ('keep', 'cacheblend'):
        return reuse_method(name, config, layers)
    schedule = named_schedule(config.recompute_schedule, layers, config.recompute_ratio)
    if name == 'cacheblend':
        return CacheBlend(schedule, config.granularity == 'segment')
    return VariedKeep(
        hops=config.max_walk_hops,
        schedule=schedule,
        restart=config.restart,
        scoring_tokens=config.scoring_tokens,
        propagation=config.propagation,
    )


def _most(deviation: Tensor, ratio: float, of: int) -> Tensor:
    """Return the indices of the largest finite values, that share of `of`; ties to the lower."""
    count = min(share(ratio, of), int(deviation.isfinite().sum()))
    return deviation.sort(descending=True, stable=True).indices[:count]
