"""How an operation may end without being done: declined, or refused as it must be.

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
    """What cannot be done now, and says so."""


# None of them is a bug.
REFUSALS = (
    DeclinedError,
    StaleHandleError,
    OutOfRowsError,
    OverBudgetError,
    CapsuleError,
    RobotMemoryError,
)


class WronglyAcceptedError(Exception):
    """What cannot be was done all the same."""


def must_refuse(work: Callable[[], object], kind: type[Exception] = ValueError) -> None:
    """Does what is to raise this kind of error."""
    try:
        found = work()
    except kind as error:
        if was_injected(error):
            raise
    else:
        raise WronglyAcceptedError(f'{found!r} came of what cannot be')
