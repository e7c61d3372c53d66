"""Work that measures the memory bandwidth and the matrix rate of a machine, in several ways.

The fastest way counts, since none is the fastest everywhere. On a CPU, the product of a row may be
limited by its operations, prepacked or not, and a copy by what it writes; one of two libraries may
be less optimized for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from embodied_kv.model.prepacked import pack

WIDTH = 2048
Work = Callable[[], object]


def readings(dtype: torch.dtype, device: str, matrices: int = 0) -> dict[str, tuple[Work, int]]:
    """Return, by name, a call and the bytes that it moves.

    The calls are products of a row with many matrices, as stored and as a model prepacks them; a
    copy of one half over the other; a sum. matrices: by default enough to hide the cost of a call.
    """
    matrices = matrices or (32 if device == 'cpu' else 256)
    weights = torch.zeros(matrices, WIDTH, WIDTH, dtype=dtype, device=device)
    row, half = weights.new_zeros(1, WIDTH), matrices // 2
    packed = nn.ModuleList(map(_linear, weights))
    pack(packed)

    def product() -> None:
        for weight in weights:
            nn.functional.linear(row, weight)

    def packed_product() -> None:
        for linear in packed:
            linear(row)

    calls = dict(
        product=product,
        packed_product=packed_product,
        copy=lambda: weights[:half].copy_(weights[half:]),
        sum=weights.view(torch.float32).sum,
    )
    return {name: (call, weights.nbytes) for name, call in calls.items()}


def products(dtype: torch.dtype, device: str) -> tuple[dict[str, Work], int]:
    """Return calls by name, and the operations of each: a matrix product, stored and prepacked."""
    width = WIDTH if device == 'cpu' else 4 * WIDTH
    matrix, weight = torch.randn(2, width, width, device=device).to(dtype)
    packed = nn.ModuleList([_linear(weight)])
    pack(packed)
    calls: dict[str, Work] = dict(
        matrices=lambda: matrix @ weight, packed_matrices=lambda: packed[0](matrix)
    )
    return calls, 2 * width**3


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(*weight.shape[::-1], bias=False, device='meta')
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made
