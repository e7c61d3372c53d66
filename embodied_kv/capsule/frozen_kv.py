"""K and V in a capsule: copied out of the cache, put back into it, checked before.

Knows the shapes of rows and of compressed blocks. Does not know whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena


def copied(name: str, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Contiguous copies of valid K and V."""
    dense = torch.contiguous_format
    return {f'{name}/k': k.clone(memory_format=dense), f'{name}/v': v.clone(memory_format=dense)}


def fill(frozen: FrozenPart, name: str, arena: Arena, row: int) -> None:
    """Puts them into the first tokens of a row of an arena."""
    for kind, target in (('k', arena.k), ('v', arena.v)):
        saved = frozen.tensors[f'{name}/{kind}']
        target[:, row, :, : saved.shape[2]].copy_(saved)


def check_row(frozen: FrozenPart, name: str, arena: Arena, length: int) -> None:
    """Raises CapsuleError unless they are of a row of so many tokens, and fit one of the arena."""
    layers, _, heads, most, dim = arena.k.shape
    _check(frozen, name, (layers, heads, length, dim), arena.k.dtype)
    if length > most:
        raise CapsuleError(
            f'{name} has {length} tokens, a row here holds {most}', ErrorCode.MISMATCH
        )


def check_block(
    frozen: FrozenPart, name: str, arena: CompressedArena, budgets: Sequence[int]
) -> None:
    """Raises CapsuleError unless they are a block of these budgets, with the arena's layers."""
    _, heads, _, dim = arena.k.shape
    if len(budgets) != len(arena.layers):
        raise CapsuleError(
            f'{name} has {len(budgets)} layers, here are {len(arena.layers)}', ErrorCode.MISMATCH
        )
    _check(frozen, name, (heads, sum(budgets), dim), arena.k.dtype)


def check_tensor(frozen: FrozenPart, name: str, *shape: int) -> None:
    """Raises CapsuleError unless there is a tensor of that name and shape, of float numbers."""
    found = frozen.tensors.get(name)
    if found is None or tuple(found.shape) != shape or not found.is_floating_point():
        there = 'missing' if found is None else f'{list(found.shape)} of {found.dtype}'
        raise CapsuleError(
            f'{name} is {there}, not {list(shape)} of float numbers', ErrorCode.MISMATCH
        )


def _check(frozen: FrozenPart, name: str, wanted: tuple[int, ...], dtype: torch.dtype) -> None:
    for kind in 'kv':
        saved = frozen.tensors.get(f'{name}/{kind}')
        if saved is None or tuple(saved.shape) != wanted or saved.dtype != dtype:
            there = 'missing' if saved is None else f'{list(saved.shape)} of {saved.dtype}'
            raise CapsuleError(
                f'{name}/{kind} is {there}, not {list(wanted)} of {dtype}: the capsule is of '
                'another model',
                ErrorCode.MISMATCH,
            )
