"""Importance of segments to a query, over several hops of attention.

Source: KEEP, section 4.2 and figure 6. The paper replaces all scores at each hop by the attention
of the relevant set. Under a causal mask a segment attends to earlier ones only, so hops drift to
the front of the prompt and lose the first scores. Therefore each hop here keeps a share of the
first scores, `restart`, as personalised PageRank does (Page et al. 1999; 0 is the paper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RESTART = 0.5


@dataclass(frozen=True)
class Importance:
    """The result of `importance`."""

    relevant: tuple[int, ...]  # indices of the relevant segments, ascending
    scores: tuple[float, ...]  # of all segments; they sum to 1, or are 0
    hops: int  # number of propagations
    stable: bool  # whether the last hop left the relevant set unchanged


def importance(
    query: Tensor,
    between: Tensor,
    ratio: float,
    candidates: Sequence[int] | None = None,
    hops: int = 8,
    restart: float = RESTART,
) -> Importance:
    """Return the segments that the next layer computes: `share` of s, or all candidates if fewer.

    At each hop the scores become the normalised mean of the relevant rows, until the relevant set
    no longer changes. Ties go to the lower index.

    Args:
        query: [s], attention from the query to each segment, mean over heads and tokens.
        between: [s, s], attention from each segment (row) to each.
        ratio: Share of the segments, in [0, 1].
        candidates: Indices of the segments that this layer computed; None for all. The others are
            never relevant and propagate nothing.
        hops: Maximum number of propagations; 0 is importance to the query alone.
        restart: Share of the first scores that each hop keeps, in [0, 1].

    Raises:
        ValueError: An argument is out of range, or attention is negative or not finite.
    """
    s = len(query)
    if query.shape != (s,) or between.shape != (s, s):
        raise ValueError(
            f'attention must be [s] and [s, s] (got {list(query.shape)} and {list(between.shape)})'
        )
    if not (0 <= ratio <= 1 and 0 <= restart <= 1 and hops >= 0):
        raise ValueError(
            'ratio and restart must be in [0, 1] and hops >= 0 '
            f'(got {ratio}, {restart} and {hops})'
        )
    alive = np.full(s, candidates is None)
    if candidates is not None:
        if any(not 0 <= index < s for index in candidates):
            raise ValueError(f'candidates must be indices below {s} (got {tuple(candidates)})')
        alive[list(candidates)] = True
    rows = between.detach().to('cpu', torch.float64).numpy().copy()
    first = query.detach().to('cpu', torch.float64).numpy()
    used = np.concatenate([first, rows[alive].ravel()])
    if not (np.isfinite(used).all() and (used >= 0).all()):
        raise ValueError('attention must be finite and >= 0')
    rows = np.where(alive[:, None] & alive, rows, 0)
    rows *= 1 - np.eye(s)
    scores = first = normalised(np.where(alive, first, 0))
    count = min(share(ratio, s), int(alive.sum()))
    relevant, stable, hop = highest(scores, alive, count), False, 0
    while not stable and hop < hops:
        spread = normalised(rows[relevant].sum(0))
        if not spread.any():  # the relevant segments attend to no other candidate
            spread = first
        scores = normalised((1 - restart) * spread + restart * first)
        before, relevant = relevant, highest(scores, alive, count)
        stable, hop = np.array_equal(before, relevant), hop + 1
    return Importance(tuple(relevant.tolist()), tuple(scores.tolist()), hop, stable)


def normalised(scores: np.ndarray) -> np.ndarray:
    """Return the scores divided by their sum; zeros if it is 0."""
    total = scores.sum()
    return scores / total if total > 0 else np.zeros_like(scores)


def highest(scores: np.ndarray, alive: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the highest scores among the candidates, ascending."""
    order = np.argsort(np.where(alive, -scores, np.inf), kind='stable')
    return np.sort(order[:count])


def share(ratio: float, segments: int) -> int:
    """Return ratio * segments, rounded half up after removal of the float error of the ratio."""
    return math.floor(round(ratio * segments, 9) + 0.5)
