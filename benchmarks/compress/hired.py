"""HiRED: vision tokens are dropped before the language model, by the vision tower's attention.

The selection rule: which tokens of each view are kept. `benchmarks.compress.early` drops the
others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.budget import apportion, check_keep_ratio


@dataclass(frozen=True)
class HiRed:
    """A token budget shared over the views, then the best tokens of each (Arif et al. 2024).

    HiRED uses the attention of a class token. SigLIP has none: the score of a token is the
    attention that it receives, averaged over all queries and heads of its view. The scores of
    every view then have the same sum, so the mass of a view counts only its tokens among the
    `salient` best of all views together. HiRED marks the best half of the full image in the same
    way; here there are views and no full image.
    """

    salient: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.salient <= 1:
            raise ValueError(f'salient is {self.salient}, not a share: it must be in (0, 1]')

    def kept(self, keep_ratio: float, vision: int, text: int) -> int:
        """Return the vision tokens kept, for a KV of every layer of keep_ratio, to half a token.

        Text is never dropped: if it alone exceeds keep_ratio, no vision token is kept. Raises
        ValueError for keep_ratio outside [0.01, 1].
        """
        check_keep_ratio(keep_ratio)
        return min(max(round(keep_ratio * (vision + text)) - text, 0), vision)

    def view_budgets(self, first: Tensor, kept: int) -> list[int]:
        """Return the tokens kept of each view, summing to `kept`; first: scores [views, tokens].

        The scores are those of the tower's first layer, where attention is still spread over the
        image content.
        """
        views, tokens = first.shape
        order = first.flatten().sort(descending=True, stable=True).indices
        best = order[: max(1, round(self.salient * views * tokens))]
        marked = torch.zeros_like(first).flatten()
        marked[best] = first.flatten()[best]
        return apportion(marked.view(views, tokens).double().sum(1).tolist(), kept, 0, tokens)

    def select(self, first: Tensor, last: Tensor, kept: int) -> list[Tensor]:
        """Return the tokens kept of each view, ascending, one int64 [tokens of that view] each.

        first, last: float [views, tokens], scores in the tower's first and last layer; the last
        layer decides which tokens stay, ties to the lower one.
        """
        order = last.sort(dim=1, descending=True, stable=True).indices
        budgets = self.view_budgets(first, kept)
        return [
            tokens[:budget].sort().values for tokens, budget in zip(order, budgets, strict=True)
        ]
