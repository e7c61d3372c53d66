"""A prompt with memory in it: where each segment lies, and whose KV could stand for it.

Knows tokens and positions. Does not know how many of them a method computes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """A memory segment in a prompt.

    ids: its tokens. unit: whose stored KV holds it, '' if none does. offset: of its first token in
    that unit, which was computed from position 0 on. stored: where its tokens are among those that
    the unit keeps; None: all are kept.
    """

    segment: str
    ids: Sequence[int]
    unit: str = ''
    offset: int = 0
    stored: slice | None = None

    @property
    def kept(self) -> int:
        """Tokens of it that the unit keeps."""
        return len(self.ids) if self.stored is None else self.stored.stop - self.stored.start

    @property
    def is_thin(self) -> bool:
        """Whether it loses tokens where its stored KV is loaded."""
        return bool(self.unit) and self.kept < len(self.ids)


@dataclass(frozen=True, eq=False)
class Prompt:
    """Tokens that are always computed, then memory, then the question, which always is, too."""

    head: Sequence[int]
    pieces: tuple[Piece, ...]
    question: Sequence[int]

    def __post_init__(self) -> None:
        if not self.question:
            raise ValueError('the question has no tokens: there is nothing to answer')

    @cached_property
    def ids(self) -> Tensor:
        """All tokens in order, int64 [length]."""
        memory = [token for piece in self.pieces for token in piece.ids]
        return torch.tensor([*self.head, *memory, *self.question])

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each piece begins."""
        starts, at = [], len(self.head)
        for piece in self.pieces:
            starts.append(at)
            at += len(piece.ids)
        return tuple(starts)

    @cached_property
    def owner(self) -> Tensor:
        """Which piece each token belongs to, int64 [length]; -1 for head and question."""
        owner = torch.full((len(self.ids),), -1)
        for i, (start, piece) in enumerate(zip(self.starts, self.pieces, strict=True)):
            owner[start : start + len(piece.ids)] = i
        return owner

    @cached_property
    def means(self) -> Tensor:
        """What takes the mean over each piece's tokens, float32 [length, pieces]."""
        mean = torch.zeros(self.length, len(self.pieces))
        for i, (start, piece) in enumerate(zip(self.starts, self.pieces, strict=True)):
            mean[start : start + len(piece.ids), i] = 1 / max(1, len(piece.ids))
        return mean

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def question_at(self) -> int:
        """Where the question begins."""
        return self.length - len(self.question)


class LayerLayout:
    """computed: bool [length], tokens that the layer computes.

    present: bool [length], tokens that it has; of a thin piece that is loaded the first `kept`
    places, which say nothing of which tokens these are. places: int64 [length], where each of
    them lies. lacks: how many are not there.
    """

    def __init__(self, prompt: Prompt, computed: Tensor) -> None:
        self.present = torch.ones(prompt.length, dtype=torch.bool)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            end = start + len(piece.ids)
            if piece.is_thin and not computed[start:end].all():
                self.present[start + piece.kept : end] = False
        self.places = self.present.cumsum(0) - 1
        self.lacks = prompt.length - int(self.present.sum())

    def close_up(self, *rows: Tensor) -> None:
        """Moves what was loaded to its places: K and V [kv_heads, tokens, head_dim], in place."""
        if self.lacks:
            at = self.present.nonzero()[:, 0]
            for row in rows:
                row[:, : len(at)] = row[:, at.to(row.device)]
