"""VL-Cache's measures of a selection, over rows of attention.

All functions take the last dimension as positions, any leading dimensions, and any float type.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def top(scores: Tensor, k: int) -> Tensor:
    """Return the k highest positions, ascending, int64 [..., k]; ties to the lower one (2.2)."""
    if not 1 <= k <= scores.shape[-1]:
        raise ValueError(f'the best {k} of {scores.shape[-1]} positions: k is out of range')
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :k].sort(-1).values


def cache_hit_rate(scores: Tensor, truth: Tensor, k: int) -> Tensor:
    """Return CacheHitRate (3.2): how much of the true top k a scoring finds.

    scores, truth: [..., n]; the result is [...]. truth: the attention of the first decoded token
    over the prompt.
    """
    return hit_rate(top(scores, k), truth)


def hit_rate(kept: Tensor, truth: Tensor) -> Tensor:
    """Return CacheHitRate of a selection with its recent window: kept int64 [..., k] -> [...]."""
    k = kept.shape[-1]

    def mask(positions: Tensor) -> Tensor:
        return torch.zeros_like(truth, dtype=torch.bool).scatter_(-1, positions, True)

    return (mask(kept) & mask(top(truth, k))).sum(-1) / k


def threshold_filter(attention: Tensor, p: float) -> Tensor:
    """Set entries below p times their row's maximum to 0: equation 1 (3.1)."""
    return attention.where(attention >= p * attention.amax(-1, keepdim=True), 0.0)


def contribution(
    attention: Tensor, chosen: Tensor, prompt: Tensor | None = None, p: float = 0.01
) -> Tensor:
    """Return the contribution (A.7): share of filtered attention that goes to one modality.

    attention: [..., rows, T], of decoded tokens over the sequence, 0 where hidden. chosen, prompt:
    bool [T], positions of the modality and of the whole prompt (None: all). Returns [...], the
    mean over the rows; a row that leaves nothing of the prompt counts as 0.
    """
    return _share(threshold_filter(attention, p), chosen, prompt)


def coverage(
    attention: Tensor, chosen: Tensor, prompt: Tensor | None = None, keep_ratio: float = 0.1
) -> Tensor:
    """Return the coverage (A.7): share of one modality among the top entries of each row.

    The top has floor(keep_ratio * T) entries. Entries equal to the last of the top are all
    counted, as in the formula. Arguments and result as in `contribution`. Raises ValueError if
    keep_ratio * T is below 1.
    """
    count = attention.shape[-1]
    k = math.floor(keep_ratio * count + 1e-9)
    if not 1 <= k <= count:
        raise ValueError(
            f'keep ratio {keep_ratio} of {count} positions is {k}: there is no top to count'
        )
    last = attention.topk(k, dim=-1).values[..., -1:]
    return _share((attention >= last).to(attention.dtype), chosen, prompt)


def _share(entries: Tensor, chosen: Tensor, prompt: Tensor | None) -> Tensor:
    """Return the chosen part of the prompt's sum, mean over rows; [..., rows, T] -> [...]."""
    within = torch.ones_like(chosen) if prompt is None else prompt
    part, whole = ((entries * where).sum(-1) for where in (chosen & within, within))
    return torch.where(whole > 0, part / whole, 0.0).mean(-1)
