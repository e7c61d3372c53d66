"""The part of a capsule for memory rows, so that a restored robot reads the same earlier frames.

A memory row is never written again, so a capsule on the device contains it without a copy.
"""

from __future__ import annotations

import math
from types import NoneType
from typing import Any, cast

import torch
from torch import Tensor

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import CapsuleError, FrozenPart, Note
from embodied_kv.compress.budget import total_budget
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.remembering import SIDE
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.frame_memory import MemoryRow, limited
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.transfer import copy_to
from embodied_kv.session.frozen_facts import INT64
from embodied_kv.text import is_text, shown

LONGEST_TEXT = 10_000  # characters of an instruction
STAMPS = 2**31 * 1_000_000_000  # ns; a message has int32 seconds
FACTS = {
    'sequence': int,
    'stamp': int,
    'length': int,
    'layout': str,
    'instruction': str,
    'until': (str, NoneType),
    'is_first': bool,
    'budgets': list,
    'cost': float,
    'pictures': int,
}


class FrameMemoryPart:
    """The memory rows of a robot as part of a capsule. All methods run on the engine thread."""

    name, depth = 'memory rows', 'planner'

    def __init__(self, engine: Engine, robot: str = '') -> None:
        self._engine, self._robot = engine, robot
        self._memory, self._arena = engine.memory, engine.kv.compressed

    def rows(self) -> tuple[MemoryRow, ...]:
        """Return the memory rows that a capsule of this moment contains, the newest first."""
        return self._engine.memory_at_boundary(self._robot)

    def freeze(self) -> FrozenPart:
        """Return the rows, the newest first; the newest frame is one of them.

        The tensors are 'I/k' and 'I/v' [kv_heads, tokens of all layers, head_dim], and
        'I/picture/J', uint8 [height, width, 3].
        """
        rows = self.rows()
        tensors = {f'{i}/k': row.k for i, row in enumerate(rows)}
        tensors |= {f'{i}/v': row.v for i, row in enumerate(rows)}
        tensors |= {
            f'{i}/picture/{j}': torch.from_numpy(picture)
            for i, row in enumerate(rows)
            for j, picture in enumerate(row.pictures)
        }
        return FrozenPart(tensors, [_facts(row) for row in rows])

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError unless each row has valid facts and its tensors."""
        if not isinstance(frozen.facts, list):
            raise _damaged('the list of memory rows', frozen.facts)
        for i, facts in enumerate(frozen.facts):
            if not isinstance(facts, dict) or facts.keys() != FACTS.keys():
                raise _damaged(f'the names in row {i}', facts)
            for name, kind in FACTS.items():
                value = facts[name]
                kinds = kind if isinstance(kind, tuple) else (kind,)
                if type(value) not in kinds or (type(value) is str and not is_text(value)):
                    raise _damaged(f'{name} of row {i}', value)
            numbers = facts['sequence'], facts['stamp'], facts['length'], facts['pictures']
            fits = 0 <= facts['cost'] < math.inf and facts['length'] > 0 <= facts['pictures']
            fits &= facts['sequence'] >= 0 and abs(facts['stamp']) < STAMPS
            if not fits or max(map(abs, numbers)) >= INT64:
                raise _damaged(f'the facts of row {i}', facts)
            if not all(type(n) is int and 0 <= n <= facts['length'] for n in facts['budgets']):
                raise _damaged(f'budgets of row {i}', facts['budgets'])
            self._check_size(i, facts)
            frozen_kv.check_block(frozen, str(i), self._arena, facts['budgets'])
            if not all(bool(frozen.tensors[f'{i}/{kind}'].isfinite().all()) for kind in 'kv'):
                raise _damaged(f'each number in row {i}', 'NaN or infinity')
            for j in range(facts['pictures']):
                found = frozen.tensors.get(name := f'{i}/picture/{j}')
                shape = () if found is None else tuple(found.shape)
                fits = len(shape) == 3 and shape[2] == 3 and 0 < min(shape) <= max(shape) <= SIDE
                if found is None or found.dtype != torch.uint8 or not fits:
                    raise _damaged(name, shape)

    def _check_size(self, i: int, facts: dict[str, Any]) -> None:
        """Raise CapsuleError for a row that is larger than those that this engine keeps."""
        model, ratio = self._engine.policy.config, self._engine.config.memory_keep_ratio
        length, kept = facts['length'], sum(facts['budgets'])
        if length > model.prefix_tokens:
            raise _damaged(f'length of row {i}', length)
        most = total_budget(ratio, len(self._arena.layers), max(1, length - model.state_tokens))
        if kept > most:
            raise CapsuleError(
                f'memory row {i} must keep at most {most} tokens of all layers (got {kept}); set '
                'engine.memory_keep_ratio to the value with which the capsule was taken',
                ErrorCode.MISMATCH,
            )
        for name in ('instruction', 'until'):
            if len(facts[name] or '') > LONGEST_TEXT:
                raise _damaged(f'{name} of row {i}', f'{len(facts[name])} characters')

    def resume(self, frozen: FrozenPart) -> Note:
        """Replace the memory rows of the robot by those of the capsule."""
        known: list[dict[str, Any]] = cast(Any, frozen.facts)
        rows = [self._row(frozen, i, facts) for i, facts in enumerate(known)]
        self._engine.forget(self._robot)  # also the newest frame, which came after the boundary
        room, most = self._memory.replace(self._robot, rows), self._memory.most
        if room == len(known):
            return None
        is_full = room < len(limited(rows, most))
        why = 'there is no room for more' if is_full else f'the limit is {most}'
        return f'{room} of {len(known)} memory rows are restored: {why}'

    def _row(self, frozen: FrozenPart, i: int, facts: dict[str, Any]) -> MemoryRow:
        frame = facts['sequence'], facts['length'], facts['layout'], facts['stamp']
        device = self._arena.k.device
        return MemoryRow(
            KvHandle('', -1, -1, *frame, -math.inf, robot=self._robot),
            facts['instruction'],
            facts['until'],
            facts['is_first'],
            _alone(copy_to(frozen.tensors[f'{i}/k'], device)),
            _alone(copy_to(frozen.tensors[f'{i}/v'], device)),
            tuple(facts['budgets']),
            facts['cost'],
            tuple(
                _alone(frozen.tensors[f'{i}/picture/{j}'].cpu()).numpy()
                for j in range(facts['pictures'])
            ),
        )


def _alone(tensor: Tensor) -> Tensor:
    """Return a tensor that keeps no larger memory alive, such as that of a whole capsule."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _facts(row: MemoryRow) -> dict[str, Any]:
    frame = {name: getattr(row.handle, name) for name in ('sequence', 'stamp', 'length', 'layout')}
    own = {name: getattr(row, name) for name in ('instruction', 'until', 'is_first', 'cost')}
    return frame | own | {'budgets': list(row.budgets), 'pictures': len(row.pictures)}


def _damaged(what: str, found: object) -> CapsuleError:
    return CapsuleError(
        f'the capsule is damaged: {what} must be that of a memory row (got {shown(found)}); drop '
        'it and take a new one',
        ErrorCode.DAMAGED,
    )
