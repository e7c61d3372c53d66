"""Stored keys at other positions: K is turned by the difference, and by nothing else.

Knows rotary positions, half-split as in `model.layers`. Does not know whose keys they are.

With R(p) the rotation by p * frequency, R(a) R(b) = R(a + b): keys that were computed at p are
those of p + by after R(by), whatever p was. Where a model scales its rotary positions, K is
s * R(p) k: the s is in the stored keys already, so a move is R(by) alone; scaled frequencies are
handed in.

The model's own angles are float32 products, position times frequency, each rounded on its own. A
move takes the same float32 frequencies and the angle in float64, so it adds no such rounding. Keys
are turned in float32 at least, and rounded to their dtype at the end.

Source: KEEP asks for KV at any position of a prompt (section 4); RoFormer, section 3.2.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from embodied_kv.runtime.stream import Event, Stream

TURNS = 1024  # distances that are remembered


def frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim), float32 [head_dim / 2], to the bit as the model's."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return theta**-exponent


class Rotation:
    """Moves the keys of one kind of model; a `prefill.Move`.

    frequency: float32 [head_dim / 2], radians per position.
    """

    def __init__(self, frequency: Tensor) -> None:
        if frequency.ndim != 1 or frequency.dtype != torch.float32:
            raise ValueError(f'frequencies are float32 [head_dim / 2], not {frequency.dtype}')
        self._frequency = frequency
        self._turn = lru_cache(TURNS)(self._new_turn)

    @classmethod
    def of(cls, head_dim: int, theta: float) -> Rotation:
        """For positions that are not scaled."""
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f'a head of {head_dim} numbers has no halves to turn')
        return cls(frequencies(head_dim, theta))

    def __call__(self, k: Tensor, by: int) -> Tensor:
        """k [..., head_dim], any float dtype, as if computed `by` positions further; new memory.

        by may be negative; 0 gives k itself, bit for bit and without a copy.
        """
        if k.shape[-1] != 2 * len(self._frequency):
            raise ValueError(f'heads of {k.shape[-1]}, frequencies of {2 * len(self._frequency)}')
        if by == 0:
            return k
        dtype = torch.promote_types(k.dtype, torch.float32)
        cos, sin, made = self._turn(by, k.device, dtype)
        stream = Stream.current(k.device)
        stream.wait(made)  # another stream may have made them
        stream.reads(cos, sin)
        first, second = k.to(dtype).chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return turned.to(k.dtype)

    def _new_turn(
        self, by: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Event]:
        """Return cos and sin [head_dim / 2] for all layers of a piece, and when they are made."""
        angles = self._frequency.to(device, torch.float64) * by
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return cos, sin, Stream.current(device).record()
