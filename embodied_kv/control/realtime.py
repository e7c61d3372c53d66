"""What an operating system can do for a thread that must be on time, where it lets us.

Knows Linux. Nothing here is needed for the suite to work; each request reports its outcome.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

MCL_CURRENT, MCL_FUTURE = 1, 2


def apply(*, lock_memory: bool, cpu_affinity: int, thread_priority: int) -> dict[str, str]:
    """Apply the requests to the calling thread (memory: to the process) -> outcome by name.

    cpu_affinity: a core, -1 for any. thread_priority: of SCHED_FIFO, 0 for the usual scheduling.
    """
    outcome = {'lock_memory': 'off', 'cpu_affinity': 'any', 'thread_priority': 'usual'}
    if lock_memory:
        outcome['lock_memory'] = _lock_memory()
    if cpu_affinity >= 0:
        outcome['cpu_affinity'] = _try(
            f'core {cpu_affinity}', lambda: os.sched_setaffinity(0, {cpu_affinity})
        )
    if thread_priority > 0:
        fifo = os.sched_param(thread_priority)
        outcome['thread_priority'] = _try(
            f'SCHED_FIFO {thread_priority}', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, fifo)
        )
    return outcome


def _lock_memory() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) == 0:
        return 'locked'
    return f'refused: {os.strerror(ctypes.get_errno())}'


def _try(done: str, request: Callable[[], None]) -> str:
    try:
        request()
        return done
    except OSError as error:
        return f'refused: {error.strerror}'
