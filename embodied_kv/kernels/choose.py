"""The next token of each slot that is sampled, from its logits.

Knows logits and temperatures. Does not know streams, nor where the chance comes from.
"""

from __future__ import annotations

import torch
from torch import Tensor


def drawn(
    logits: Tensor, scores: Tensor, tokens: Tensor, temperatures: Tensor, shares: Tensor
) -> Tensor:
    """Tokens drawn from softmax(logits / temperature), int64 [slots]; the given ones at 0.

    By the inverse distribution function: the first token at which the distribution exceeds the
    slot's share. logits: float32 [slots, vocab], of which scores [slots] are the greatest.
    temperatures, shares (in [0, 1)): float64 [slots].
    """
    is_greedy = temperatures == 0
    least = logits.double() - scores[:, None]  # the greatest is 0: no temperature is too small
    scaled = least / torch.where(is_greedy, 1.0, temperatures)[:, None]
    cumulative = scaled.softmax(-1).cumsum(-1)
    found = torch.searchsorted(cumulative, (shares * cumulative[:, -1])[:, None])[:, 0]
    return torch.where(is_greedy, tokens, found.clamp(max=logits.shape[1] - 1))
