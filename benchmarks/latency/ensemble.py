"""Temporal ensembling: the executed action is the mean of all actions predicted for its moment.

Knows chunks and the periods they were made for. Does not know which policy made them. A chunk that
arrives late is averaged with the older chunks like one that arrives at once, because all of them
are available by then.

Source: Zhao et al. 2023, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware"
(ACT), section III-B and algorithm 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from training.evaluate.cases import Actor, Case, Choice, Frame

DECAY = 0.01  # m of the weights exp(-m k), as in ACT


def average(chunks: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    """Return the newest chunk, averaged with the older chunks, [chunk, dim].

    Each action is the weighted mean over all chunks that cover its moment.

    chunks: the period of the first action, and the actions [chunk, dim], a period apart; oldest
    first. The k-th chunk that covers a moment has the weight exp(-m k); the oldest of them has k =
    0.
    """
    newest, (length, dim) = chunks[-1][0], chunks[-1][1].shape
    said = np.full((len(chunks), length, dim), np.nan)
    for row, (period, actions) in zip(said, chunks, strict=True):
        left = actions[newest - period :]
        row[: len(left)] = left
    known = ~np.isnan(said[..., 0])  # [chunks, length]
    weights = np.where(known, np.exp(-DECAY * (known.cumsum(0) - 1)), 0.0)
    return np.einsum('kl,kld->ld', weights / weights.sum(0), np.nan_to_num(said))


class Ensemble:
    """Another actor, whose chunks are averaged over each episode."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._said: dict[Case, list[tuple[int, np.ndarray]]] = defaultdict(list)

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        choices = self._actor.act(frames)
        return [self._averaged(*pair) for pair in zip(frames, choices, strict=True)]

    def _averaged(self, frame: Frame, choice: Choice) -> Choice:
        now, said = frame.observation.sequence, self._said[frame.case]
        said.append((now, choice.chunk))
        said[:] = [(period, chunk) for period, chunk in said if now - period < len(chunk)]
        return choice._replace(chunk=average(said))

    def finish(self) -> None:
        self._said.clear()
        self._actor.finish()
