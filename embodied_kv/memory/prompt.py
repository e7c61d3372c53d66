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
    stored: slice | None = None  # its places among the tokens that the unit keeps; None: all

    @property
    def kept(self) -> int:
        """Return the number of its tokens that the unit keeps."""
        return len(self.ids) if self.stored is None else self.stored.stop - self.stored.start


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


class LayerLayout:
    """The places of a prompt's tokens in the row, in one layer.

    A unit that keeps part of its tokens is thin where it is loaded, and whole where it is
    recomputed, so layers differ in which tokens they have. The tokens of a layer lie without gaps
    in the order of the prompt, so a read up to a token reads exactly what precedes it.
    """

    def __init__(self, prompt: Prompt, computed: Tensor) -> None:
        """Lay out a layer that computes the tokens of a mask, bool [length]."""
        # bool [length]; of a thin piece that is loaded, the first `kept` places
        self.present = torch.ones(prompt.length, dtype=torch.bool)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            end = start + len(piece.ids)
            if piece.unit and piece.kept < len(piece.ids) and not computed[start:end].all():
                self.present[start + piece.kept : end] = False
        self.places = self.present.cumsum(0) - 1  # int64 [length]
        self.lacks = prompt.length - int(self.present.sum())

    def compact(self, *rows: Tensor) -> None:
        """Move loaded K and V [kv_heads, tokens, head_dim] to their places, in place."""
        if self.lacks:
            at = self.present.nonzero()[:, 0]
            for row in rows:
                row[:, : len(at)] = row[:, at.to(row.device)]
