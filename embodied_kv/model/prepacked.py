"""Prepacked weights: linear layers in the layout in which oneDNN multiplies on a CPU.

A product with a weight in its stored layout packs the weight each time, which takes longer than
the product itself for few tokens. In bfloat16 the results were bit-identical on the tested CPU
(avx512_bf16); in float32 the order of sums differs.

A compiler traces a packed product as one operation, `embodied_kv::packed_product`, over a weight
without strides; after `lower` it calls the product without Python.
"""

from __future__ import annotations

import math
import platform
from contextlib import suppress

import torch
from torch import Tensor, nn

from embodied_kv.model.dtype import cpu_multiplies_bfloat16

# Fewest parameters of a packed weight: for a smaller one the call costs more than it saves.
LEAST = {torch.bfloat16: 1 << 16, torch.float32: 200_000}
LEAST_ON_AMD = {torch.float32: 40_000}  # MKL, the alternative, has half of oneDNN's rate there
X86 = ('x86_64', 'AMD64')
FEW = 64  # tokens that the layout is optimised for; other numbers are valid

_library = torch.library.Library('embodied_kv', 'FRAGMENT')
_library.define('packed_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor')


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, 'none', [], '')


def _like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl('packed_product', _multiply, 'CompositeExplicitAutograd')
torch.library.register_fake('embodied_kv::packed_product', _like, lib=_library)


def lower() -> None:
    """Register the C function of the product with inductor, where torch supports it."""
    with suppress(ImportError):
        from torch._inductor.ir import TensorBox  # some seconds to import
        from torch._inductor.lowering import register_lowering
        from torch._inductor.mkldnn_ir import LinearUnary

        @register_lowering(torch.ops.embodied_kv.packed_product.default, type_promotion_kind=None)
        def product(x: TensorBox, weight: TensorBox, bias: TensorBox | None) -> TensorBox:
            return TensorBox.create(LinearUnary.create(x, weight, bias, 'none', [], ''))


class PrepackedLinear(nn.Module):
    """A linear layer with a packed weight: x [..., in] -> [..., out].

    The layer takes over the weight of `linear`. Its state_dict has the unpacked weight.
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
    """Pack the weights of the linear layers in place; return the number of packed layers.

    Frozen weights on an x86 CPU are packed from `least` parameters on, in bfloat16 only where the
    CPU has units for it. They are packed one by one, so that only one is in memory twice.
    """
    made: dict[nn.Linear, PrepackedLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in made:
                setattr(parent, name, made[child])
            elif type(child) is nn.Linear and _is_worth_it(child.weight):
                made[child] = PrepackedLinear(child)
                setattr(parent, name, made[child])
    return len(made)


def prepacked_names(model: nn.Module) -> list[str]:
    """Return the names of the packed layers."""
    return [name for name, module in model.named_modules() if isinstance(module, PrepackedLinear)]


def _is_worth_it(weight: Tensor) -> bool:
    if weight.device.type != 'cpu' or platform.machine() not in X86:
        return False
    if weight.requires_grad or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16 and not cpu_multiplies_bfloat16():
        return False
    return weight.numel() >= least(weight.dtype)


def least(dtype: torch.dtype) -> float:
    """Return the fewest parameters of a packed weight on this CPU; infinity for never."""
    anywhere = LEAST.get(dtype, math.inf)
    on_amd = 'AMD' in torch.cpu.get_capabilities().get('cpu_name', '')
    return min(anywhere, LEAST_ON_AMD.get(dtype, anywhere)) if on_amd else anywhere
