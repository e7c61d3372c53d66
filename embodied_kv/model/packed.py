"""Weights in the layout in which a CPU multiplies them, made once for all that share them.

Knows oneDNN's packed layout. Does not know whose weights they are. A product with a weight as it
is stored packs it anew each time, which takes longer than the product where few tokens are
multiplied. In bfloat16 what came out was the same bit for bit where it was tried (avx512_bf16); in
float32 sums have another order.

A compiler that traces a packed product sees one operation, `embodied_kv::packed_product`, over a
weight without strides; by `lower` it calls the product itself, without Python.
"""

from __future__ import annotations

import math
import platform
from contextlib import suppress

import torch
from torch import Tensor, nn

from embodied_kv.model.dtype import cpu_multiplies_bfloat16

# Parameters of a weight: a smaller one is multiplied faster than it is called.
LEAST = {torch.bfloat16: 1 << 16, torch.float32: 200_000}
LEAST_ON_AMD = {torch.float32: 40_000}  # where MKL, else called, has half of oneDNN's rate
X86 = ('x86_64', 'AMD64')
FEW = 64  # tokens that the layout is made for; other numbers are multiplied by it as well

_library = torch.library.Library('embodied_kv', 'FRAGMENT')
_library.define('packed_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor')


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, 'none', [], '')


def _like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl('packed_product', _multiply, 'CompositeExplicitAutograd')
torch.library.register_fake('embodied_kv::packed_product', _like, lib=_library)


def lower() -> None:
    """Has inductor call the product by its C function; by Python, where torch lacks that."""
    with suppress(ImportError):
        from torch._inductor.ir import TensorBox  # some seconds to import
        from torch._inductor.lowering import register_lowering
        from torch._inductor.mkldnn_ir import LinearUnary

        @register_lowering(torch.ops.embodied_kv.packed_product.default, type_promotion_kind=None)
        def product(x: TensorBox, weight: TensorBox, bias: TensorBox | None) -> TensorBox:
            return TensorBox.create(LinearUnary.create(x, weight, bias, 'none', [], ''))


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed: x [..., in] -> [..., out].

    It takes the weight from `linear`. Its state_dict holds it as it is stored elsewhere.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), FEW)
        self.weight = linear.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f'{prefix}weight'] = self.weight.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.embodied_kv.packed_product.default(x, self.weight, self.bias)


def pack(model: nn.Module) -> int:
    """Packs the weights of its linear layers in place, where that is of use; how many it packed.

    Those that do not learn, on a CPU of x86, from `least` parameters on; in bfloat16 where the CPU
    has units for it. One after the other, so that no more than one is there twice.
    """
    made: dict[nn.Linear, PackedLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in made:
                setattr(parent, name, made[child])
            elif type(child) is nn.Linear and _is_worth_it(child.weight):
                made[child] = PackedLinear(child)
                setattr(parent, name, made[child])
    return len(made)


def packed_names(model: nn.Module) -> list[str]:
    """Of its packed layers."""
    return [name for name, module in model.named_modules() if isinstance(module, PackedLinear)]


def _is_worth_it(weight: Tensor) -> bool:
    if weight.device.type != 'cpu' or platform.machine() not in X86:
        return False
    if weight.requires_grad or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16 and not cpu_multiplies_bfloat16():
        return False
    return weight.numel() >= least(weight.dtype)


def least(dtype: torch.dtype) -> float:
    """Parameters from which on a weight is packed on this CPU; infinity where none is."""
    anywhere = LEAST.get(dtype, math.inf)
    on_amd = 'AMD' in torch.cpu.get_capabilities().get('cpu_name', '')
    return min(anywhere, LEAST_ON_AMD.get(dtype, anywhere)) if on_amd else anywhere
