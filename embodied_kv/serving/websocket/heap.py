"""Freed memory goes back to the system, where the C library keeps it otherwise.

Knows glibc's `malloc_trim`. Does not know what the memory was for.
"""

from __future__ import annotations

import asyncio
import ctypes
from concurrent.futures import Executor
from contextlib import suppress

LARGE = 2**20  # bytes of a message for which it is worth the time
PERIOD = 2.0  # s between two trims


def _malloc_trim() -> ctypes._CFuncPtr | None:
    """Return the function of the C library of this process; None where it has none."""
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None


class HeapTrim:
    """Trims on a worker, at most once a period; from the event loop."""

    def __init__(self, work: Executor) -> None:
        self._work, self._trim, self._due = work, _malloc_trim(), False

    def freed(self, size: int) -> None:
        """So many bytes are free, or will be within the period."""
        if size >= LARGE and not self._due and self._trim is not None:
            self._due = True
            asyncio.get_running_loop().call_later(PERIOD, self._go)

    def _go(self) -> None:
        self._due = False
        with suppress(RuntimeError):  # the server has stopped
            self._work.submit(self._trim, 0)
