"""Methods of KV reuse: which tokens of a prompt each layer recomputes.

A method returns a mask over the prompt's tokens for each layer, within the mask of the layer
before: a token whose hidden state was dropped cannot be computed later. Head and question are
always_computed computed, and so are segments without stored KV. KEEP is in `keep.py`.
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
    """What a method decides by after a layer."""

    prompt: Prompt  # the prompt
    layer: int  # the layer that was computed
    positions: Tensor  # int64 [T], the tokens that it computed
    queries: Tensor  # of these tokens, [T, heads, head_dim]
    sums: Tensor  # log-sum-exp of their attention scores, [T, heads]
    keys: Tensor  # [kv_heads, tokens, head_dim], of all tokens of the layer, see `layout`
    layout: LayerLayout  # the places of the prompt's tokens
    deviation: Callable[[], Tensor]  # squared distance of the next layer's keys, float [T]
    on_choice: Callable[[Importance], object] = lambda choice: None  # receives choices


class Reuse:
    """Nothing with stored KV; the base class of the methods, which state what is recomputed.

    `loads` states whether stored KV is read, `first_layer_full` whether the first layer computes
    all tokens.
    """

    name, loads, first_layer_full = 'full_reuse', True, False

    def resident(self, prompt: Prompt) -> int:
        """Return how many tokens at the start of the prompt have KV in the row already."""
        return 0

    def holds(self, ids: Sequence[int]) -> None:
        """Note that the row has been filled with the KV of these tokens by a restore."""

    def first(self, prompt: Prompt) -> Tensor:
        """Return the tokens that the first layer computes, bool [length]."""
        return always_computed(prompt) | self.first_layer_full

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        """Return the tokens that the next layer computes, bool [length], within `computed`."""
        return computed


class FullRecompute(Reuse):
    """Everything, in every layer: a prefill of text."""

    name, loads, first_layer_full = 'full', False, True


class PrefixCaching(Reuse):
    """Everything from the first token on that differs from the prompt before."""

    name, loads, first_layer_full = 'prefix', False, True

    def __init__(self) -> None:
        self._last: Tensor = torch.empty(0, dtype=torch.int64)

    def resident(self, prompt: Prompt) -> int:
        """Return the length of the common start; the last token is always_computed computed."""
        shared = min(len(self._last), prompt.length - 1)
        differ = (self._last[:shared] != prompt.ids[:shared]).nonzero()
        self._last = prompt.ids
        return int(differ[0]) if len(differ) else shared

    def holds(self, ids: Sequence[int]) -> None:
        self._last = torch.tensor(ids, dtype=torch.int64)


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


def always_computed(prompt: Prompt) -> Tensor:
    """Return the tokens that every method computes: head, question, and text without KV."""
    bare = torch.tensor([not piece.unit for piece in prompt.pieces] + [True])
    return bare[prompt.owner]


def _most(deviation: Tensor, ratio: float, of: int) -> Tensor:
    """Return the indices of the largest finite values, that share of `of`; ties to the lower."""
    count = min(share(ratio, of), int(deviation.isfinite().sum()))
    return deviation.sort(descending=True, stable=True).indices[:count]
