"""Check that a computation writes only the buffers that it declares.

A state is complete only if the next step reads no other memory that was written. The check covers
what goes through torch's dispatcher, but not kernels launched outside of it (Triton, NumPy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embodied_kv.runtime.buffer import Buffers, describe

RELABELS = {torch.ops.aten.detach_.default}  # declared to write, but changes no byte


class UndeclaredWriteError(RuntimeError):
    """A computation wrote memory that is neither declared nor its own."""


class DeclaredWrites(TorchDispatchMode):
    """A context in which every write must go into one of `buffers` or into memory made within it.

    Raises UndeclaredWriteError for another write, before it is done.
    """

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self._ranges = [range(b.address, b.address + b.bytes) for b in buffers]
        self._made: set[int] = set()  # addresses of storages made within the context

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        for tensor in () if func in RELABELS else _written(func, args, kwargs):
            if not self._may_write(tensor):
                raise UndeclaredWriteError(
                    f'{func} must write a declared buffer (got {describe(tensor)}, which is not '
                    'in one); declare it, or write into memory that the computation makes'
                )
        known = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        self._made |= {_storage(tensor) for tensor in _tensors(result)} - known
        return result

    def _may_write(self, tensor: Tensor) -> bool:
        if not tensor.numel() or _storage(tensor) in self._made:
            return True
        first = tensor.data_ptr()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = first + tensor.element_size() * (1 + sum((n - 1) * s for n, s in steps)) - 1
        return any(first in r and last in r for r in self._ranges)


def _written(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    """Yield the arguments that the operator declares to write."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[i] if i < len(args) else kwargs.get(argument.name))


def _tensors(tree: object) -> Iterator[Tensor]:
    """Yield all tensors except packed weights, which have no address."""
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return (leaf for leaf in leaves if leaf.layout == torch.strided)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
