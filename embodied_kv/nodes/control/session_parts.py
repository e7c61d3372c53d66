"""The parts of a capsule that nodes own: the instruction and the leftover actions.

All methods run on the engine thread, so they only hand changes over to other threads. The module
is in `nodes` because `session` may not import `control`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from embodied_kv.capsule.capsule import CapsuleError, Fact, FrozenPart
from embodied_kv.control.command import LeftoverActions
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.errors import ErrorCode


class InstructionPart:
    """The instruction in force.

    Args:
        instruction: Returns it; '' without one.
        tell: Puts another instruction in force.
    """

    name, depth = 'perception', 'planner'

    def __init__(self, instruction: Callable[[], str], tell: Callable[[str], object]) -> None:
        self._instruction, self._tell = instruction, tell

    def freeze(self) -> FrozenPart:
        """Return the instruction in force; '' without one."""
        return FrozenPart(facts={'instruction': self._instruction()})

    def orders(self) -> str:
        """Return the instruction in force."""
        return self._instruction()

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Check that the capsule has an instruction. Raises CapsuleError."""
        if not isinstance(frozen.fact('instruction'), str):
            raise CapsuleError('the capsule has no instruction', ErrorCode.DAMAGED)

    def resume(self, frozen: FrozenPart) -> str | None:
        """Put the instruction in force if one is in force now; otherwise return a note.

        An instruction that a stop or the end of a goal has cleared is not restored.
        """
        instruction = cast('str', frozen.fact('instruction'))
        if self._instruction():
            self._tell(instruction)
        elif instruction:
            return 'no instruction is in force, so that of the capsule is not put in force'
        return None


class ActionPart:
    """The leftover actions of the chunk that the robot executes.

    Args:
        control: The control loop.
        now: Returns the ROS time (ns).
        dt: Time (s) between two actions.
        joints: Names of the outputs in the order of an action.
    """

    name, depth = 'action', 'actor'

    def __init__(
        self, control: ControlLoop, now: Callable[[], int], dt: float, joints: Sequence[str]
    ) -> None:
        self._control, self._now = control, now
        self._dt, self._joints = dt, joints

    def orders(self) -> tuple[int, float]:
        """Return a value that differs after a stop, and once the arm is armed or given back."""
        return self._control.safety.stops, self._control.safety.since

    def freeze(self) -> FrozenPart:
        """Return the remaining actions as `values`, float64 [n, joints]; empty without a chunk."""
        leftover = self._control.leftover()
        if leftover is None:
            return FrozenPart()
        facts: dict[str, Fact] = {
            'dt': self._dt,
            'joints': list(self._joints),
            'stamp': leftover.stamp,
            'sequence': leftover.sequence,
            'steps': leftover.steps,
        }
        return FrozenPart({'values': torch.from_numpy(leftover.values.copy())}, facts)

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Check that this robot could execute the actions. Raises CapsuleError."""
        if not frozen.tensors:
            return
        values, dt = frozen.tensors.get('values'), frozen.fact('dt')
        if values is None or values.dim() != 2 or values.shape[1] != len(self._joints):
            shape = 'missing' if values is None else list(values.shape)
            raise CapsuleError(
                f'leftover actions must be [n, {len(self._joints)}] (got {shape})',
                ErrorCode.DAMAGED,
            )
        if (joints := frozen.fact('joints')) != list(self._joints):
            raise CapsuleError(
                f'joints of the leftover actions must be {list(self._joints)} (got {joints})',
                ErrorCode.MISMATCH,
            )
        if not len(values) or not values.isfinite().all():
            raise CapsuleError(
                'leftover actions must be finite, and at least one', ErrorCode.DAMAGED
            )
        if dt != self._dt:
            raise CapsuleError(
                f'dt of the leftover actions must be {self._dt} s (got {dt})', ErrorCode.MISMATCH
            )
        if not all(isinstance(frozen.fact(n), int) for n in ('stamp', 'sequence', 'steps')):
            raise CapsuleError(
                'stamp, sequence and steps of the leftover actions must be integers',
                ErrorCode.DAMAGED,
            )

    def resume(self, frozen: FrozenPart) -> None:
        """Execute the actions from now on, as PREVIOUS, until a fresh chunk takes over."""
        if not frozen.tensors:
            return
        names = 'stamp', 'sequence', 'steps'
        stamp, sequence, steps = (cast('int', frozen.fact(name)) for name in names)
        now = self._now()
        leftover = LeftoverActions(
            frozen.tensors['values'].cpu().numpy().astype(np.float64),
            stamp,
            max(0.0, (now - stamp) / 1e9),
            sequence,
            steps,
        )
        self._control.resume(leftover, now)
