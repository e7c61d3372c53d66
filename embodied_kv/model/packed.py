"""Weights in the layout in which a CPU multiplies them, made once for all that share them.

Knows oneDNN's packed layout of bfloat16 weights. Does not know whose they are. With a weight as it
is stored, each product packs it anew, which takes longer than the product where few tokens are
multiplied: 2 of 3 ms, say. What comes out is the same, bit for bit.

A compiler that traces a packed product sees one operation, `embodied_kv::packed_linear`, over a
weight without strides.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embodied_kv.model.dtype import cpu_multiplies_bfloat16

LEAST = 1 << 16  # parameters of a weight: a smaller one is multiplied faster than it is called

_library = torch.library.Library('embodied_kv', 'FRAGMENT')
_library.define('packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor')


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, 'none', [], '')


def _like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl('packed_linear', _multiply, 'CompositeExplicitAutograd')
torch.library.register_fake('embodied_kv::packed_linear', _like, lib=_library)


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed: x [..., in] bfloat16 -> [..., out]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().clone(), None)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.embodied_kv.packed_linear.default(x, self.weight, self.bias)


def pack(model: nn.Module) -> int:
    """Packs the weights of its linear layers in place, where that is of use; how many it packed.

    Those in bfloat16 of a CPU that has units for it, from `LEAST` parameters on. Twice is once.
    """
    if not cpu_multiplies_bfloat16():
        return 0
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _is_worth_it(child.weight)
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)


def _is_worth_it(weight: Tensor) -> bool:
    on_cpu = weight.device.type == 'cpu'
    return on_cpu and weight.dtype == torch.bfloat16 and weight.numel() >= LEAST
