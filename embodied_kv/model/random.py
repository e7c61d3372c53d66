"""Seeded random weights: for latency, for tests, and to start training from.

Knows the scale that each kind of parameter needs so that activations stay near one at any depth.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

# One block of normal numbers is drawn, and repeated from another offset for every parameter:
# drawing billions would take minutes. Its length is prime, so that no two rows of a matrix agree.
BLOCK = 1_000_003


@torch.no_grad()
def init_random(model: nn.Module, seed: int = 0) -> None:
    """Fill every parameter of a Pi05: a function of seed, names and shapes alone."""
    generator = torch.Generator().manual_seed(seed)
    # Twice, so that any offset has BLOCK values after it.
    block = torch.randn(BLOCK, generator=generator).repeat(2)
    for name, parameter in model.state_dict().items():
        mean, deviation = _distribution(name, parameter)
        offset = zlib.crc32(name.encode()) % BLOCK
        values = block[offset : offset + min(BLOCK, parameter.numel())] * deviation + mean
        _tile(parameter.view(-1), values.to(parameter.device, parameter.dtype))


def _distribution(name: str, parameter: Tensor) -> tuple[float, float]:
    """Mean and standard deviation."""
    if name.startswith('backbone.') and 'norm' in name:
        return 0.0, 0.1  # used as 1 + w
    if name.startswith('vision.') and 'norm' in name and name.endswith('weight'):
        return 1.0, 0.1
    if name.endswith('bias'):
        return 0.0, 0.1
    if name == 'backbone.embed.weight':
        # Tokens are scaled by sqrt(width); any louder, and the tied head only echoes its input.
        return 0.0, 0.03 * parameter.shape[1] ** -0.5
    if 'embed' in name and 'patch' not in name:
        return 0.0, parameter.shape[1] ** -0.5
    return 0.0, parameter[0].numel() ** -0.5  # [out, in...]: 1 / sqrt(fan in)


def _tile(parameter: Tensor, values: Tensor) -> None:
    for piece in parameter.split(len(values)):
        piece.copy_(values[: len(piece)])
