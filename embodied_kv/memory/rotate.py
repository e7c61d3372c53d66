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


class Rotation:
    """The rotation of keys.

    wavelengths: float32 [layers or 1, head_dim / 2] (positions/rad); one row serves every layer.
    """

    def __init__(self, wavelengths: Tensor) -> None:
        if wavelengths.ndim != 2 or wavelengths.dtype != torch.float32:
            raise ValueError(
                f'wavelengths must be float32 [layers or 1, head_dim / 2] (got '
                f'{wavelengths.dtype} {list(wavelengths.shape)})'
            )
        self._wavelengths = wavelengths
        self._turn = lru_cache(TURNS)(self._new_turn)

    def __call__(self, k: Tensor, by: int, layer: int = 0) -> Tensor:
        """Return k [..., head_dim] of a layer as if computed `by` positions further.

        The result is in new memory. `by` may be negative; 0 returns k itself.
        """
        lines, half = self._wavelengths.shape
        if k.shape[-1] != 2 * half:
            raise ValueError(f'k must have heads of {2 * half} (got {k.shape[-1]})')
        if by == 0:
            return k
        dtype = torch.promote_types(k.dtype, torch.float32)
        cos, sin, made = self._turn(by, min(layer, lines - 1), k.device, dtype)
        stream = Stream.current(k.device)
        stream.wait(made)  # another stream may have computed them
        stream.reads(cos, sin)
        first, second = k.to(dtype).chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return turned.to(k.dtype)

    def _new_turn(
        self, by: int, line: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Event]:
        """Return cos and sin [head_dim / 2], and the event after which they are computed."""
        angles = by / self._wavelengths[line].to(device, torch.float64)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return cos, sin, Stream.current(device).record()
