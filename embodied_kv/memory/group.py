"""A group of segments, how groups are made, and what becomes of them.

Knows ids, embeddings, token counts and steps; it is what `groups` works on.

Source: KEEP, section 4.1; t = 10 as there. The bounds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Grouping:
    """How groups are made.

    stable_steps: t. similarity: least cosine with a group's mean that makes a segment belong to
    it. max_members, max_tokens: of a group of more than one. reach: how many groups with room, the
    latest ones, are searched, so that placing a segment costs the same in any memory.
    """

    stable_steps: int = 10
    similarity: float = 0.5
    max_members: int = 8
    max_tokens: int = 256
    reach: int = 256

    def __post_init__(self) -> None:
        if min(self.stable_steps, self.max_members, self.max_tokens, self.reach) < 1:
            raise ValueError(f'{self}: steps, bounds and reach start at 1')
        if not -1 <= self.similarity <= 1:
            raise ValueError(f'similarity {self.similarity} is no cosine')


@dataclass(frozen=True)
class Transition:
    """A group that changed its state, with its size then. into: the group that it merged into."""

    step: int
    group: int
    static: bool
    members: int
    tokens: int
    into: int | None = None


@dataclass(eq=False)
class Group:
    """Segments by meaning.

    changed: step of the last change to it. tokens: of all members. members: tokens by id. total:
    sum of their embeddings; mean: that with length 1, or 0.
    """

    number: int
    total: np.ndarray
    changed: int
    static: bool = False
    tokens: int = 0
    members: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shift(0.0)

    def shift(self, difference: np.ndarray | float) -> None:
        """Adds to the sum of embeddings."""
        self.total = self.total + difference
        self.mean = self.total / (np.linalg.norm(self.total) or 1.0)
