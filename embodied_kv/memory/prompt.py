"""Prompts with memory: the position of each segment, and the stored KV that can replace it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """A memory segment in a prompt."""

    segment: str  # its id
    ids: Sequence[int]  # its tokens
    unit: str = ''  # the unit whose stored KV holds it; '' if there is none
    offset: int = 0  # the position of its first token in that unit, which was computed from 0 on


@dataclass(frozen=True, eq=False)
class Prompt:
    """The head, memory and the question; head and question are always computed."""

    head: Sequence[int]
    pieces: tuple[Piece, ...]
    question: Sequence[int]

    def __post_init__(self) -> None:
        if not self.question:
            raise ValueError('question must have at least one token')

    @cached_property
    def ids(self) -> Tensor:
        """Return all tokens in order, int64 [length]."""
        memory = [token for piece in self.pieces for token in piece.ids]
        return torch.tensor([*self.head, *memory, *self.question])

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return the position of the first token of each piece."""
        lengths = [len(piece.ids) for piece in self.pieces]
        return tuple(accumulate(lengths[:-1], initial=len(self.head)) if lengths else ())

    @cached_property
    def owner(self) -> Tensor:
        """Return the piece of each token, int64 [length]; -1 for head and question."""
        owner = torch.full((len(self.ids),), -1)
        for i, (start, piece) in enumerate(zip(self.starts, self.pieces, strict=True)):
            owner[start : start + len(piece.ids)] = i
        return owner

    @cached_property
    def means(self) -> Tensor:
        """Return the matrix that averages over the tokens of each piece, [length, pieces]."""
        mean = torch.nn.functional.one_hot(self.owner + 1, len(self.pieces) + 1)[:, 1:].float()
        return mean / mean.sum(0).clamp(min=1)

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def question_at(self) -> int:
        """Return the position of the first token of the question."""
        return self.length - len(self.question)
