"""Which tokens of a prompt are computed again: the ways that KEEP is compared with.

One base: all give masks over the prompt's tokens, layer by layer, each within the one before: a
token whose hidden state was dropped has none to be computed from. Head and question are always
computed, and so is what has no stored KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.memory.importance import Importance
from embodied_kv.memory.prompt import LayerLayout, Prompt
from embodied_kv.memory.schedule import Schedule, share


@dataclass(frozen=True, eq=False)
class LayerState:
    """What there is to decide by after layer `layer` of `layers`.

    positions: int64 [T], of the tokens that it computed; queries: theirs, [T, heads, head_dim];
    sums: log-sum-exp of their attention's scores, [T, heads]. keys: [kv_heads, tokens, head_dim],
    of the whole prompt as far as the layer has it: `layout` says where. deviation: float [T] when
    called, how far each token's keys in the next layer are from the stored ones (0 where none are
    stored). on_choice: takes each choice by importance, for whoever wants to know.
    """

    prompt: Prompt
    layer: int
    layers: int
    positions: Tensor
    queries: Tensor
    sums: Tensor
    keys: Tensor
    layout: LayerLayout
    deviation: Callable[[], Tensor]
    on_choice: Callable[[Importance], object] = lambda choice: None


class Reuse:
    """Computes nothing of memory again.

    name: the method's, in tables. loads: whether it ever reads stored KV.
    """

    name, loads = 'full_reuse', True

    def resident(self, prompt: Prompt) -> int:
        """Tokens at the start of the prompt whose KV lies in the row from the last one."""
        return 0

    def holds(self, ids: Sequence[int]) -> None:
        """The row holds the KV of these tokens, of a prompt that another one of it filled."""

    def first(self, prompt: Prompt) -> Tensor:
        """Tokens of the first layer, bool [length]."""
        return always(prompt)

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        """Tokens of the next layer, bool [length], within `computed`, those of this one."""
        return computed


class FullRecompute(Reuse):
    """Everything, in every layer: a prefill of text."""

    name, loads = 'full', False

    def first(self, prompt: Prompt) -> Tensor:
        return torch.ones(prompt.length, dtype=torch.bool)


class PrefixCaching(Reuse):
    """Everything behind the first token that differs from the prompt before."""

    name, loads = 'prefix', False

    def __init__(self) -> None:
        self._last: Tensor = torch.empty(0, dtype=torch.int64)

    def resident(self, prompt: Prompt) -> int:
        """The prompt's last token is computed even if nothing has changed."""
        shared = min(len(self._last), prompt.length - 1)
        differ = (self._last[:shared] != prompt.ids[:shared]).nonzero()
        self._last = prompt.ids
        return int(differ[0]) if len(differ) else shared

    def holds(self, ids: Sequence[int]) -> None:
        self._last = torch.tensor(ids, dtype=torch.int64)

    def first(self, prompt: Prompt) -> Tensor:
        return torch.ones(prompt.length, dtype=torch.bool)


@dataclass(frozen=True)
class Epic(Reuse):
    """The first tokens of every segment (Hu et al. 2024), in every layer."""

    tokens: int = 1
    name = 'epic'

    def first(self, prompt: Prompt) -> Tensor:
        mask = always(prompt)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            mask[start : start + min(self.tokens, len(piece.ids))] = True
        return mask


@dataclass(frozen=True)
class CacheBlend(Reuse):
    """All tokens in the first layer, then those whose keys differ most (Yao et al. 2025).

    schedule: share of memory per layer, chosen among what the layer before computed by the
    deviation of the next layer's keys; an even one chooses once. segments: whole segments, by the
    mean over their tokens, instead of single tokens.
    """

    schedule: Schedule
    segments: bool = False
    name = 'cacheblend'

    def first(self, prompt: Prompt) -> Tensor:
        return torch.ones(prompt.length, dtype=torch.bool)

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        before, ratio = self.schedule.ratios[state.layer : state.layer + 2]
        if ratio == before:
            return computed
        prompt, mask = state.prompt, always(state.prompt)
        deviation = torch.full((prompt.length,), -torch.inf)
        deviation[state.positions] = state.deviation()
        if self.segments:
            pieces = _most(_of_segments(prompt, deviation), ratio, len(prompt.pieces))
            return mask | torch.isin(prompt.owner, pieces)
        memory = (~mask).nonzero()[:, 0]
        mask[memory[_most(deviation[memory], ratio, len(memory))]] = True
        return mask


def always(prompt: Prompt) -> Tensor:
    """Tokens that every method computes: head, question, and pieces without stored KV."""
    bare = torch.tensor([not piece.unit for piece in prompt.pieces] + [True])
    return bare[prompt.owner]


def _of_segments(prompt: Prompt, deviation: Tensor) -> Tensor:
    """[length] -> mean over each segment, [s]; -inf without stored KV, or where a token has it."""
    found = [
        deviation[start : start + len(piece.ids)].mean()
        if piece.unit
        else deviation.new_tensor(-torch.inf)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True)
    ]
    return torch.stack(found) if found else deviation[:0]


def _most(deviation: Tensor, ratio: float, of: int) -> Tensor:
    """Indices of the largest: that share of `of`, none that is -inf; ties to the lower one."""
    count = min(share(ratio, of), int(deviation.isfinite().sum()))
    return deviation.sort(descending=True, stable=True).indices[:count]
