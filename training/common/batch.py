"""What a step learns from: tensors of some samples, and of what may be known of each.

Knows shapes. Does not know where samples come from, nor losses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

EMPTY = -100  # no target


@dataclass(frozen=True, eq=False)
class Batch:
    """B samples of V views of S x S pixels, N things and P prompt tokens at most, T packed tokens.

    images: uint8 [B, V, S, S, 3]. prompt, prompt_length: long [B, P], right-padded, and [B].
    actions: float32 [B, chunk, padded_action_dim], normalised. delay: long [B], how many of them
    are given: the arm is already going to execute those; known: long [B], how many there are: what
    comes later is not learnt. packed: long [B, T], segments of
    question and answer one after another; segment: which one a token belongs to, -1 is padding;
    offset: its position in the segment; answer: the next token where it is to be predicted, else
    -100. pixels: float32 [B, N, V, 2], (column, row) of each thing's centre, NaN where not in
    view; colour, shape: long [B, N], -1 where there is no thing. goal: float32 [B, 3], m, what the
    instruction is about, or NaN. where_at: long [B, N], packed slot that the position of a thing
    is read from, or -1; where: float32 [B, N, 3], m.
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

    def split(self, parts: int) -> list[Batch]:
        """Equal parts of the samples, in order."""
        columns = {f.name: getattr(self, f.name).chunk(parts) for f in fields(self)}
        return [
            Batch(**{name: column[i] for name, column in columns.items()}) for i in range(parts)
        ]
