"""The input tensors of a compiled computation, kept so that it need not be traced again.

A recipe is a small JSON file next to the packages: the digest of a package, and for each of its
inputs the path on which the tensor is reached from the computation (`self.layers[3].weight`). Its
name is a key of all that a trace depends on: the facts that the caller states, and the layout of
every tensor that is reached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType

import torch
from torch import Tensor, nn

from embodied_kv import storage
from embodied_kv.runtime.buffer import describe

ALIGNMENT = 16  # bytes of an address that compiled code for a GPU may assume
OWN = 'embodied_kv.'  # modules of classes whose attributes are followed, besides nn.Module


def named_tensors(root: object) -> dict[str, Tensor]:
    """Return every tensor that is reached from `root`, by its first path."""
    found: dict[str, Tensor] = {}
    seen, waiting = set(), [('self', root)]
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found[path] = one
        else:
            waiting += reversed([(f'{path}{name}', child) for name, child in _children(one)])
    return found


def _children(one: object) -> Iterator[tuple[str, object]]:
    """Yield what is reached from an object in one step, with the next part of its path."""
    if isinstance(one, partial):
        yield '.func', one.func
        yield '.args', one.args
        yield '.keywords', one.keywords
    elif isinstance(one, MethodType | BuiltinMethodType):
        yield '.self', one.__self__
        yield '.func', getattr(one, '__func__', None)
    elif isinstance(one, FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            try:
                yield f'.{name}', cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield '.defaults', one.__defaults__
        for name in one.__code__.co_names:
            if isinstance(held := one.__globals__.get(name), Tensor):
                yield f'.global.{name}', held
    elif isinstance(one, Mapping):
        for key, child in one.items():
            yield f'[{key}]', child
    elif isinstance(one, list | tuple):
        for i, child in enumerate(one):
            yield f'[{i}]', child
    elif isinstance(one, nn.Module) or type(one).__module__.startswith(OWN):
        for kind in type(one).__mro__:
            for name in getattr(kind, '__slots__', ()):
                if hasattr(one, name):
                    yield f'.{name}', getattr(one, name)
        for name, child in getattr(one, '__dict__', {}).items():
            yield f'.{name}', child


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor; for packed weights those that it would have unpacked."""
    dense = tensor.layout == torch.strided
    return tensor.stride() if dense else (*tensor.shape[1:], 1)


def offset(tensor: Tensor) -> int:
    """Return the elements between an aligned address and a tensor on a GPU; 0 on a CPU.

    Code for a GPU that assumes an aligned input copies one that is not, and then writes in place
    to the copy.
    """
    return tensor.data_ptr() % ALIGNMENT // tensor.element_size() if tensor.is_cuda else 0


def layout(tensor: Tensor) -> str:
    """Return all properties of a tensor that compiled code depends on, except its bytes."""
    packed = '' if tensor.layout == torch.strided else ' packed'
    shift = f' +{offset(tensor)}' if offset(tensor) else ''
    return f'{describe(tensor)} {strides(tensor)} {tensor.device}{packed}{shift}'


def key(name: str, facts: str, tensors: Mapping[str, Tensor]) -> str:
    """Return 32 hex digits of a computation's name, its facts, and the layouts of its tensors."""
    lines = [name, facts, *(f'{path} {layout(tensor)}' for path, tensor in tensors.items())]
    return hashlib.blake2b('\n'.join(lines).encode(), digest_size=16).hexdigest()


def paths_of(inputs: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> list[str] | None:
    """Return the path of each input; None if one of them is not reached."""
    by_id = {id(tensor): path for path, tensor in tensors.items()}
    if not by_id.keys() >= {id(tensor) for tensor in inputs}:
        return None
    return [by_id[id(tensor)] for tensor in inputs]


def write(folder: Path, key: str, digest: str, paths: Sequence[str]) -> None:
    """Write a recipe. Raises OSError."""
    text = json.dumps({'package': digest, 'inputs': list(paths)})
    with storage.replaced(folder / f'{key}.json') as new:
        storage.write(new, text.encode())


def read(folder: Path, key: str) -> tuple[str, list[str]] | None:
    """Return digest and paths of a recipe; None if there is no readable one."""
    try:
        found = json.loads((folder / f'{key}.json').read_bytes())
        digest, paths = found['package'], found['inputs']
    except (OSError, ValueError, KeyError, TypeError):
        return None
    texts = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
    return (digest, paths) if isinstance(digest, str) and texts else None
