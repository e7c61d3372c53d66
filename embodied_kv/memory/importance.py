"""Which segments matter to a query, over several hops of attention.

Knows attention between segments as numbers. Does not know tokens, heads or a model: the caller
makes the means.

Source: KEEP, section 4.2. The paper replaces all scores by the relevant set's attention at each
hop. Under a causal mask a segment sees earlier ones alone, so hop after hop drifts to the front of
the prompt, and what the question found first is forgotten. `restart` keeps that share of the first
scores at each hop, as in personalised PageRank (Page et al. 1999; 0 is the paper); `propagation`
says how a hop reads attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_kv.memory.schedule import share


@dataclass(frozen=True)
class Propagation:
    """How a hop reads attention between segments.

    diagonal: what a segment attends to in itself counts. symmetric: attention counts in both
    directions, each segment's to itself left out. accumulated: a hop adds to the scores instead of
    replacing them (the name `accumulated` is this and symmetric).
    """

    diagonal: bool = False
    symmetric: bool = False
    accumulated: bool = False


PROPAGATIONS = dict(
    directed=Propagation(),
    diagonal=Propagation(diagonal=True),
    symmetric=Propagation(symmetric=True),
    accumulated=Propagation(symmetric=True, accumulated=True),
)


def named_propagation(name: str) -> Propagation:
    """Raises ValueError that lists the names."""
    if name not in PROPAGATIONS:
        raise ValueError(f'no propagation {name!r}; there are: {", ".join(PROPAGATIONS)}')
    return PROPAGATIONS[name]


@dataclass(frozen=True)
class Importance:
    """relevant: indices of the relevant segments, ascending.

    scores: of all segments; they sum to 1 or are 0. hops: how often they were propagated. stable:
    whether the last hop left the set as it was.
    """

    relevant: tuple[int, ...]
    scores: tuple[float, ...]
    hops: int
    stable: bool


def importance(
    query: Tensor,
    between: Tensor,
    ratio: float,
    candidates: Sequence[int] | None = None,
    hops: int = 8,
    restart: float = 0.0,
    propagation: str = 'directed',
) -> Importance:
    """The segments to compute in the next layer: `share` of s, or all candidates if fewer.

    query [s]: attention from the query to each segment. between [s, s]: from each segment (row) to
    each. Both are means over heads and tokens. candidates: indices of the segments that this layer
    computed, None for all; the others are never relevant and propagate nothing. At each hop the
    scores become the mean of the relevant rows, normalised, until the relevant set is the one
    before, at most `hops` times; 0 is importance to the query alone. propagation: one of
    `propagation.PROPAGATIONS`. Ties go to the lower index.

    Raises ValueError for shapes that do not fit, negative or undefined attention, a ratio or a
    restart outside [0, 1], an unknown propagation and indices that are not there.
    """
    how = named_propagation(propagation)
    s = len(query)
    if query.shape != (s,) or between.shape != (s, s):
        raise ValueError(f'attention {list(query.shape)} and {list(between.shape)}: not s, s x s')
    if not (0 <= ratio <= 1 and 0 <= restart <= 1 and hops >= 0):
        raise ValueError(f'ratio {ratio} and restart {restart} are in [0, 1], hops {hops} from 0')
    alive = np.ones(s, bool)
    if candidates is not None:
        if any(not 0 <= index < s for index in candidates):
            raise ValueError(f'candidates {tuple(candidates)} are not all among {s} segments')
        alive = np.zeros(s, bool)
        alive[list(candidates)] = True
    rows = between.detach().to('cpu', torch.float64).numpy().copy()
    first = query.detach().to('cpu', torch.float64).numpy()
    if not (np.isfinite(first).all() and np.isfinite(rows[alive]).all()):
        raise ValueError('attention is not finite')
    if (first < 0).any() or (rows[alive] < 0).any():
        raise ValueError('attention is negative')
    rows = _connections(np.where(alive[:, None] & alive, rows, 0), how)
    scores = total = first = _normalised(np.where(alive, first, 0))
    count = min(share(ratio, s), int(alive.sum()))
    relevant, stable, hop = _top(scores, alive, count), False, 0
    while not stable and hop < hops:
        spread = _normalised(rows[relevant].sum(0))
        if not spread.any():  # the relevant ones attend to nothing that could still be relevant
            spread = first
        hopped = _normalised((1 - restart) * spread + restart * first)
        total = total + hopped if how.accumulated else hopped
        scores = _normalised(total)
        before, relevant = relevant, _top(scores, alive, count)
        stable, hop = np.array_equal(before, relevant), hop + 1
    return Importance(tuple(relevant.tolist()), tuple(scores.tolist()), hop, stable)


def _connections(rows: np.ndarray, how: Propagation) -> np.ndarray:
    """Attention between segments as a hop reads it."""
    rows = rows + rows.T if how.symmetric else rows
    return rows if how.diagonal else rows * (1 - np.eye(len(rows)))


def _normalised(scores: np.ndarray) -> np.ndarray:
    total = scores.sum()
    return scores / total if total > 0 else np.zeros_like(scores)


def _top(scores: np.ndarray, alive: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest scores among the candidates, ascending; ties to the lower one."""
    order = np.argsort(np.where(alive, -scores, np.inf), kind='stable')
    return np.sort(order[:count])
