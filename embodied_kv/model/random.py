"""Seeded random weights for latency measurements, tests, and the start of training.

The scale of each kind of parameter keeps activations near one at any depth.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from embodied_kv.model.layers import RmsNorm

# One block of normal numbers is repeated from another offset for each parameter, because drawing
# billions takes minutes. Its length is prime, so that no two rows of a matrix are equal.
BLOCK = 1_000_003


@torch.no_grad()
def init_random(model: nn.Module, seed: int = 0) -> None:
    """Fill every parameter, as a function of seed, names and shapes alone."""
    generator = torch.Generator().manual_seed(seed)
    # Twice, so that BLOCK values follow any offset.
    block = torch.randn(BLOCK, generator=generator).repeat(2)
    # Norms that scale by their weight, not by 1 + weight.
    norms = ((name, part) for name, part in model.named_modules() if isinstance(part, RmsNorm))
    plain = {f'{name}.weight' for name, norm in norms if not norm.offset}
    for name, parameter in model.state_dict().items():
        mean, deviation = (1.0, 0.1) if name in plain else _distribution(name, parameter)
        offset = zlib.crc32(name.encode()) % BLOCK
        values = block[offset : offset + min(BLOCK, parameter.numel())] * deviation + mean
        values = values.to(parameter.device, parameter.dtype)
        for piece in parameter.view(-1).split(len(values)):
            piece.copy_(values[: len(piece)])


def _distribution(name: str, parameter: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation."""
    if not name.startswith('vision.') and 'norm' in name and parameter.ndim == 1:
        return 0.0, 0.1  # used as 1 + w, or a bias
    if name.startswith('vision.') and 'norm' in name and name.endswith('weight'):
        return 1.0, 0.1
    if name.endswith('bias'):
        return 0.0, 0.1
    if name == 'backbone.embed.weight':
        # Tokens are scaled by sqrt(width); with larger values the tied head repeats its input.
        return 0.0, 0.03 * parameter.shape[1] ** -0.5
    if 'embed' in name and 'patch' not in name:
        return 0.0, parameter.shape[1] ** -0.5
    return 0.0, parameter[0].numel() ** -0.5  # [out, in...]: 1 / sqrt(fan in)
