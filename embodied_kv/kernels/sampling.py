"""Sampling of the next token of each slot from its logits.

Probabilities are summed as integers, which is exact in any order: a slot gets the same token
alone, in any batch, and on any device that computes the same probabilities.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

WHOLE = 2.0**40  # parts of the distribution; a token of less than one part is never drawn
BLOCK = 512  # tokens of a block; a sum in two levels is faster than a long one
COLDEST = 1e-30  # temperature, in float32


def share(seed: int, token: int) -> float:
    """Return the random number in [0, 1) that draws token number `token` of an answer.

    It depends on both numbers alone, so that no state of a random generator has to be saved.
    Raises ValueError for an invalid seed.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=token)).random()


def sample_tokens(
    logits: Tensor, scores: Tensor, tokens: Tensor, temperatures: Tensor, shares: Tensor
) -> Tensor:
    """Return tokens drawn from softmax(logits / temperature), int64 [slots].

    By the inverse distribution function: the first token at which the distribution exceeds the
    slot's share; `tokens` at temperature 0. logits: float32 [slots, vocab]; scores: their maxima
    [slots]. temperatures, shares (in [0, 1)): float64 [slots].
    """
    is_greedy = temperatures == 0
    warm = torch.where(is_greedy, 1.0, temperatures).clamp(min=COLDEST).float()
    least = logits - scores[:, None]  # the maximum is 0, so no temperature is too small
    parts = ((least / warm[:, None]).softmax(-1) * WHOLE).long()
    blocks = F.pad(parts, (0, -parts.shape[1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)  # [slots, blocks]
    total = sums.sum(-1)
    wanted = torch.minimum((shares * total).long(), total - 1)
    block, wanted = _reached(sums, wanted)
    place, _ = _reached(blocks.take_along_dim(block[:, None, None], 1)[:, 0], wanted)
    found = (block * BLOCK + place).clamp(max=parts.shape[1] - 1)
    return torch.where(is_greedy, tokens, found)


def _reached(parts: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return where sums of parts [slots, n] first exceed `wanted` [slots], and the rest there."""
    ends = parts.cumsum(-1)
    at = torch.searchsorted(ends, wanted[:, None], right=True).clamp(max=parts.shape[1] - 1)
    before = (ends - parts).gather(-1, at)
    return at[:, 0], wanted - before[:, 0]
