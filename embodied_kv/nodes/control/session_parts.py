"""What the nodes put into a capsule, beside the engine's rows and streams, and take out again.

Knows the facts of a capsule and who answers for them. Does not know when a capsule is taken. All
of it runs on the engine's thread, so what is to happen elsewhere is only handed over. It stays in
`nodes` because `session` may not import `control`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.control.command import Leftover
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.errors import ErrorCode


class InstructionPart:
    """What the robot is to do. instruction: says it. tell: puts another one in force."""

    name, depth = 'perception', 'planner'

    def __init__(self, instruction: Callable[[], str], tell: Callable[[str], None]) -> None:
        self._instruction, self._tell = instruction, tell

    def buffers(self) -> tuple:
        """None: an instruction is a fact."""
        return ()

    def freeze(self) -> FrozenPart:
        """The instruction in force, '' where there is none."""
        return FrozenPart(facts={'instruction': self._instruction()})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError where there is no instruction."""
        if not isinstance(_fact(frozen, 'instruction'), str):
            raise CapsuleError('the capsule has no instruction', ErrorCode.DAMAGED)

    def resume(self, frozen: FrozenPart) -> str | None:
        """Put the instruction in force, if one is in force now; return a note if none is.

        An instruction that a stop or the end of a goal has cleared does not come back.
        """
        instruction = frozen.facts['instruction']
        if self._instruction():
            self._tell(instruction)
        elif instruction:
            return 'no instruction is in force, so that of the capsule is not put in force'
        return None


class ActionPart:
    """The rest of the chunk that the robot executes.

    now: ns on the ROS clock. dt: s between two actions. joints: what is moved, in
    the order of an action.
    """

    name, depth = 'action', 'actor'

    def __init__(
        self, control: ControlLoop, now: Callable[[], int], dt: float, joints: Sequence[str]
    ) -> None:
        self._control, self._now = control, now
        self._dt, self._joints = dt, joints

    def buffers(self) -> tuple:
        """None: a chunk that is executed has left the engine."""
        return ()

    def freeze(self) -> FrozenPart:
        """tensors: 'values', float64 [n, joints], none of them begun; nothing without a chunk."""
        leftover = self._control.leftover()
        if leftover is None:
            return FrozenPart()
        facts = {
            'dt': self._dt,
            'joints': list(self._joints),
            'stamp': leftover.stamp,
            'sequence': leftover.sequence,
            'steps': leftover.steps,
        }
        return FrozenPart({'values': torch.from_numpy(leftover.values.copy())}, facts)

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError for a chunk that this robot could not execute."""
        if not frozen.tensors:
            return
        values, dt = frozen.tensors.get('values'), _fact(frozen, 'dt')
        if values is None or values.dim() != 2 or values.shape[1] != len(self._joints):
            shape = 'missing' if values is None else list(values.shape)
            raise CapsuleError(
                f'the rest of a chunk is {shape}, not [n, {len(self._joints)}]', ErrorCode.DAMAGED
            )
        if (joints := _fact(frozen, 'joints')) != list(self._joints):
            raise CapsuleError(
                f'the rest of a chunk moves {joints}, this robot has {list(self._joints)}',
                ErrorCode.MISMATCH,
            )
        if not len(values) or not values.isfinite().all():
            raise CapsuleError('the rest of a chunk is empty or not finite', ErrorCode.DAMAGED)
        if dt != self._dt:
            raise CapsuleError(
                f'the rest of a chunk has dt {dt} s, this robot {self._dt} s', ErrorCode.MISMATCH
            )
        if not all(isinstance(_fact(frozen, n), int) for n in ('stamp', 'sequence', 'steps')):
            raise CapsuleError(
                'the rest of a chunk does not say which frame it answers', ErrorCode.DAMAGED
            )

    def resume(self, frozen: FrozenPart) -> None:
        """It begins now, and goes out as a previous chunk until a fresh one takes over."""
        if not frozen.tensors:
            return
        now, facts = self._now(), frozen.facts
        leftover = Leftover(
            frozen.tensors['values'].cpu().numpy().astype(np.float64),
            facts['stamp'],
            max(0.0, (now - facts['stamp']) / 1e9),
            facts['sequence'],
            facts['steps'],
        )
        self._control.resume(leftover, now)


def _fact(frozen: FrozenPart, name: str) -> object:
    return frozen.facts.get(name) if isinstance(frozen.facts, dict) else None
