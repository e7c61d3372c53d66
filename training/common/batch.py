"""The batch that a training step of a policy learns from, with its labels.

This module knows the shapes of tensors. It knows neither the source of samples nor losses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

EMPTY = -100  # no target


@dataclass(frozen=True, eq=False)
class Batch:
    """B samples of V views of S x S pixels, N things and P prompt tokens at most, T packed tokens.

    images: uint8 [B, V, S, S, 3]. prompt, prompt_length: long [B, P], right-padded, and [B].
    actions: float32 [B, chunk, padded_action_dim], normalised. delay: long [B], length of the
    action prefix: these actions are inputs, because the arm is committed to them. known: long [B],
    number of actions with labels; later ones have no loss. packed: long [B, T], segments of
    question and answer one after another; segment: index of each token's segment, -1 for padding;
    offset: position in the segment; answer: the next token where it is to be predicted, else -100.
    pixels: float32 [B, N, V, 2], (column, row) of the centre of each thing, NaN where it is not in
    view; colour, shape: long [B, N], -1 where there is no thing. goal: float32 [B, 3], m, current
    target position of the instruction, or NaN. where_at: long [B, N], packed slot from which the
    position of a thing is read, or -1; where: float32 [B, N, 3], m, position of each thing.

    memory_images, memory_prompt, memory_length: those of M earlier frames of each sample, newest
    first, with a dimension M behind the first, or None. memory_seen: bool [B, M, N], which tokens
    of their prefixes are read; none of an absent frame. recall: long [B, R], right-padded tokens
    of the instruction that read memory rows and prefix, and recall_length: long [B], 0 without
    memory rows.
    """

    images: Tensor
    prompt: Tensor
    prompt_length: Tensor
    actions: Tensor
    delay: Tensor
    known: Tensor
    packed: Tensor
    segment: Tensor
    offset: Tensor
    answer: Tensor
    pixels: Tensor
    colour: Tensor
    shape: Tensor
    goal: Tensor
    where_at: Tensor
    where: Tensor
    memory_images: Tensor | None = None
    memory_prompt: Tensor | None = None
    memory_length: Tensor | None = None
    memory_seen: Tensor | None = None
    recall: Tensor | None = None
    recall_length: Tensor | None = None

    def columns(self) -> dict[str, Tensor]:
        """Return the present fields by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: column for name, column in found.items() if column is not None}

    def split(self, parts: int) -> list[Batch]:
        """Return equal parts of the samples, in order."""
        columns = {name: column.chunk(parts) for name, column in self.columns().items()}
        return [
            Batch(**{name: column[i] for name, column in columns.items()}) for i in range(parts)
        ]
