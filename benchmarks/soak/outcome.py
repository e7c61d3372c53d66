"""How an operation may end without being done: declined, or correctly refused.

Knows errors. Does not know operations.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.soak.faults import was_injected
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.memory.segment import RobotMemoryError


class DeclinedError(Exception):
    """An operation that is not possible now; the message states the reason."""


# Errors that are not bugs.
REFUSALS = (
    DeclinedError,
    StaleHandleError,
    OutOfRowsError,
    OverBudgetError,
    CapsuleError,
    RobotMemoryError,
)


class WronglyAcceptedError(Exception):
    """An impossible request that was accepted."""


def must_refuse(work: Callable[[], object], kind: type[Exception] = ValueError) -> None:
    """Run work that must raise this kind of error. Raises WronglyAcceptedError if it does not."""
    try:
        found = work()
    except kind as error:
        if was_injected(error):
            raise
    else:
        raise WronglyAcceptedError(f'{found!r} came of what cannot be')
