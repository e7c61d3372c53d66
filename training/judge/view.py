"""What the tokens of a prompt see while a judge is trained: many questions behind one memory.

Each question is the last token of a prompt of its own, so that one pass teaches many. `isolated`:
what is seen where each segment's KV was computed by itself and moved to its position. Rotary
attention knows distances alone, so a mask says it exactly. Knows positions; does not know what the
tokens are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.common.views import dense_attention, seen

PAIR = 2  # tokens of a segment


class JudgeView:
    """<bos>, `segments` of `size` tokens, <ask>, then `questions` that all stand at one position.

    positions: int64 [1, T]. values: where the segments' last tokens are. asked: where the
    questions are.
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
        """Nothing is read after these tokens."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, k, v, self._mask.expand(len(q), -1, -1))
