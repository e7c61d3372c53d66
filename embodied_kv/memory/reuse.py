"""Methods of KV reuse: which tokens of a prompt each layer recomputes.

A method returns a mask over the prompt's tokens for each layer, within the mask of the layer
before: a token whose hidden state was dropped cannot be computed later. Head and question are
always computed, and so are segments without stored KV. KEEP is in `keep.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.memory.importance import Importance
from embodied_kv.memory.prompt import Prompt


@dataclass(frozen=True, eq=False)
class LayerState:
    """The data from which a method decides after a layer."""

    prompt: Prompt
    layer: int  # the layer that was computed
    positions: Tensor  # int64 [T], the tokens that it computed
    queries: Tensor  # of these tokens, [T, heads, head_dim]
    sums: Tensor  # log-sum-exp of their attention scores, [T, heads]
    keys: Tensor  # [kv_heads, length, head_dim], of all tokens of the prompt
    on_choice: Callable[[Importance], object] = lambda choice: None  # receives choices


class Reuse:
    """Recomputes nothing that has stored KV; the base class of all methods.

    `loads` states whether stored KV is read, `first_layer_full` whether the first layer computes
    all tokens.
    """

    name, loads, first_layer_full = 'full_reuse', True, False

    def resident(self, prompt: Prompt) -> int:
        """Return how many tokens at the start of the prompt have KV in the row already."""
        return 0

    def note_restored(self, ids: Sequence[int]) -> None:
        """Note that the row has been filled with the KV of these tokens by a restore."""

    def first(self, prompt: Prompt) -> Tensor:
        """Return the tokens that the first layer computes, bool [length]."""
        return always_computed(prompt) | self.first_layer_full

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        """Return the tokens that the next layer computes, bool [length], within `computed`."""
        return computed


class FullRecompute(Reuse):
    """Recomputes everything in every layer: a prefill of text."""

    name, loads, first_layer_full = 'full', False, True


class PrefixCaching(Reuse):
    """Recomputes everything from the first token that differs from the previous prompt."""

    name, loads, first_layer_full = 'prefix', False, True

    def __init__(self) -> None:
        self._last: Tensor = torch.empty(0, dtype=torch.int64)

    def resident(self, prompt: Prompt) -> int:
        """Return the length of the common start; the last token is always computed."""
        shared = min(len(self._last), prompt.length - 1)
        differ = (self._last[:shared] != prompt.ids[:shared]).nonzero()
        self._last = prompt.ids
        return int(differ[0]) if len(differ) else shared

    def note_restored(self, ids: Sequence[int]) -> None:
        self._last = torch.tensor(ids, dtype=torch.int64)


def always_computed(prompt: Prompt) -> Tensor:
    """Return the tokens that every method computes: head, question, and text without KV."""
    bare = torch.tensor([not piece.unit for piece in prompt.pieces] + [True])
    return bare[prompt.owner]
