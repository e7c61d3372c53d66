"""K, V and other tensors of a frozen part: copied, checked, and written back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena


def copied(name: str, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Return contiguous copies of K and V, by name."""
    dense = torch.contiguous_format
    return {f'{name}/k': k.clone(memory_format=dense), f'{name}/v': v.clone(memory_format=dense)}


def fill(frozen: FrozenPart, name: str, arena: Arena, row: int) -> None:
    """Write frozen K and V into the first tokens of a row of an arena."""
    for kind, target in (('k', arena.k), ('v', arena.v)):
        saved = frozen.tensors[f'{name}/{kind}']
        target[:, row, :, : saved.shape[2]].copy_(saved)


def check_row(frozen: FrozenPart, name: str, arena: Arena, length: int) -> None:
    """Raise CapsuleError unless K and V are those of `length` tokens, and fit a row."""
    layers, _, heads, most, dim = arena.k.shape
    for kind in 'kv':
        check_tensor(frozen, f'{name}/{kind}', layers, heads, length, dim, dtype=arena.k.dtype)
    if length > most:
        raise CapsuleError(
            f'{name} has {length} tokens, a row here holds {most}', ErrorCode.MISMATCH
        )


def check_block(
    frozen: FrozenPart, name: str, arena: CompressedArena, budgets: Sequence[int]
) -> None:
    """Raise CapsuleError unless K and V are a block of these budgets, one for each layer."""
    _, heads, _, dim = arena.k.shape
    if len(budgets) != len(arena.layers):
        raise CapsuleError(
            f'{name} must have {len(arena.layers)} layers (got {len(budgets)})',
            ErrorCode.MISMATCH,
        )
    for kind in 'kv':
        check_tensor(frozen, f'{name}/{kind}', heads, sum(budgets), dim, dtype=arena.k.dtype)


def check_tensor(
    frozen: FrozenPart, name: str, *shape: int, dtype: torch.dtype | None = None
) -> None:
    """Raise CapsuleError unless a tensor has this shape and dtype (None: any float dtype)."""
    found = frozen.tensors.get(name)
    fits = found is not None and (found.dtype == dtype if dtype else found.is_floating_point())
    if found is None or not fits or tuple(found.shape) != shape:
        there = 'nothing' if found is None else f'{list(found.shape)} of {found.dtype}'
        raise CapsuleError(
            f'{name} must be {list(shape)} of {dtype or "float numbers"} (got {there}); restore '
            'the capsule with the model that it was taken with',
            ErrorCode.MISMATCH,
        )
