"""What a prompt's text attended to, in a capsule: for streams that wait to be compressed.

Knows statistics and their shapes. Does not know whose they are, nor what is chosen by them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.compress.base import Statistics
from embodied_kv.config import BackboneConfig
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.arena import Arena


def tensors(name: str, scores: Statistics | None) -> dict[str, Tensor]:
    """NAME/columns [layers, heads, n] and NAME/density [layers, heads], float32; {} for none."""
    if scores is None:
        return {}
    return {f'{name}/columns': scores.columns.clone(), f'{name}/density': scores.density.clone()}


def check(frozen: FrozenPart, name: str, row: Mapping, b: BackboneConfig) -> None:
    """Raises CapsuleError unless what the facts of a row promise is there, in its shape."""
    scored = row.get('scored')
    if scored is None:
        return
    if type(scored) is not int or scored < 1:
        raise CapsuleError(
            f'{name} was scored by {scored!r} tokens: it must be a number from 1',
            ErrorCode.DAMAGED,
        )
    density = b.layers, b.heads
    for kind, shape in (('columns', (*density, row['length'])), ('density', density)):
        found = frozen.tensors.get(f'{name}/{kind}')
        if found is None or tuple(found.shape) != shape or found.dtype != torch.float32:
            what = 'nothing' if found is None else f'{found.dtype} {list(found.shape)}'
            raise CapsuleError(
                f'{name}/{kind} is {what}, here it is float32 {list(shape)}', ErrorCode.MISMATCH
            )


def thawed(frozen: FrozenPart, name: str, row: Mapping, arena: Arena) -> Statistics:
    """Of a row whose facts promise them, on the device of an arena that the row is put into."""
    columns, density = (
        frozen.tensors[f'{name}/{kind}'].to(arena.device) for kind in ('columns', 'density')
    )
    return Statistics(columns, density, arena.k.shape[2], row['scored'])
