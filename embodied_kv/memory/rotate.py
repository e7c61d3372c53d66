"""Rotation of stored keys to other positions.

Rotary positions are half-split, as in `model.layers`. With R(p) the rotation by p * frequency,
R(a) R(b) = R(a + b), so keys that were computed at p become those of p + by after R(by), whatever
p was. Where a model scales its rotary positions, K is s * R(p) k: the stored keys contain s, so a
move is R(by) with the scaled frequencies.

The model's angles are float32 products, each rounded. A move uses the same float32 frequencies
with the angle in float64, so it adds no such rounding. Keys are rotated in float32 at least, and
rounded to their dtype at the end.

Source: KEEP, section 4 (KV at any position of a prompt); RoFormer, section 3.2.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from embodied_kv.runtime.stream import Event, Stream

TURNS = 1024  # distances whose cos and sin are cached


def frequencies(head_dim: int, theta: float) -> Tensor:
    """Return theta^(-2i / head_dim), float32 [head_dim / 2], bit for bit as the model's."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return theta**-exponent


class Rotation:
    """The rotation of keys by frequencies, float32 [head_dim / 2] (rad/position)."""

    def __init__(self, frequency: Tensor) -> None:
        if frequency.ndim != 1 or frequency.dtype != torch.float32:
            raise ValueError(
                f'frequency must be float32 [head_dim / 2] (got {frequency.dtype} '
                f'{list(frequency.shape)})'
            )
        self._frequency = frequency
        self._turn = lru_cache(TURNS)(self._new_turn)

    def __call__(self, k: Tensor, by: int) -> Tensor:
        """Return k [..., head_dim] as if computed `by` positions further, in new memory.

        `by` may be negative; 0 returns k itself.
        """
        if k.shape[-1] != 2 * len(self._frequency):
            raise ValueError(
                f'k must have heads of {2 * len(self._frequency)} (got {k.shape[-1]})'
            )
        if by == 0:
            return k
        dtype = torch.promote_types(k.dtype, torch.float32)
        cos, sin, made = self._turn(by, k.device, dtype)
        stream = Stream.current(k.device)
        stream.wait(made)  # another stream may have computed them
        stream.reads(cos, sin)
        first, second = k.to(dtype).chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return turned.to(k.dtype)

    def _new_turn(
        self, by: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Event]:
        """Return cos and sin [head_dim / 2], and the event after which they are computed."""
        angles = self._frequency.to(device, torch.float64) * by
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return cos, sin, Stream.current(device).record()
