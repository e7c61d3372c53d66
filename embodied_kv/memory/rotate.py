"""Rotation of stored keys to other positions.

Rotary positions are half-split, as in `model.layers`. With R(p) the rotation by p / wavelength,
R(a) R(b) = R(a + b), so keys that were computed at p become those of p + by after R(by), whatever
p was. Where a model scales its rotary positions, K is s * R(p) k: the stored keys contain s, so a
move is R(by) with the scaled wavelengths.

The model's angles are float32 quotients, each rounded. A move uses the same float32 wavelengths
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


def wavelengths(head_dim: int, theta: float) -> Tensor:
    """Return theta^(2i / head_dim), float32 [head_dim / 2], bit for bit as the model's."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return theta**exponent


class Rotation:
    """The rotation of keys by wavelengths, float32 [head_dim / 2] (positions/rad)."""

    def __init__(self, wavelength: Tensor) -> None:
        if wavelength.ndim != 1 or wavelength.dtype != torch.float32:
            raise ValueError(
                f'wavelength must be float32 [head_dim / 2] (got {wavelength.dtype} '
                f'{list(wavelength.shape)})'
            )
        self._wavelength = wavelength
        self._turn = lru_cache(TURNS)(self._new_turn)

    def __call__(self, k: Tensor, by: int) -> Tensor:
        """Return k [..., head_dim] as if computed `by` positions further, in new memory.

        `by` may be negative; 0 returns k itself.
        """
        if k.shape[-1] != 2 * len(self._wavelength):
            raise ValueError(
                f'k must have heads of {2 * len(self._wavelength)} (got {k.shape[-1]})'
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
        angles = by / self._wavelength.to(device, torch.float64)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return cos, sin, Stream.current(device).record()
