"""The attention view of a judge in training: many questions behind one memory.

Each question is the last token of its own prompt, so that one pass trains many. `isolated`: what
tokens see if the KV of each segment was computed independently and moved to its position. Rotary
attention depends on distances only, so a mask expresses this exactly. This module knows positions,
not what the tokens are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.common.views import dense_attention, seen

PAIR = 2  # tokens of a segment


class JudgeView:
    """<bos>, `segments` of `size` tokens, <ask>, then `questions` that share one position.

    positions: int64 [1, T]. values: slots of the segments' last tokens. asked: slots of the
    questions.
    """

    def __init__(
        self, segments: int, questions: int, isolated: bool = False, size: int = PAIR
    ) -> None:
        memory = 1 + size * segments
        end = memory + 1  # behind <ask>
        self.values, self.asked = slice(size, memory, size), slice(end, end + questions)
        position = torch.arange(end + questions)
        self.positions = position.clamp(max=end)[None]
        piece = (position - 1).div(size, rounding_mode='floor')  # -1 is <bos>
        other = piece[:, None] != piece[None]
        apart = (position[:, None] >= end) & (position[None] >= end)  # two questions
        if isolated:
            apart |= (position[:, None] < memory) & other
        same, later = position[:, None] == position[None], position[:, None] >= position[None]
        visible = same | (later & ~apart)
        self._mask = seen(visible)[None]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Do nothing: no later token reads these tokens."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, k, v, self._mask.expand(len(q), -1, -1))
