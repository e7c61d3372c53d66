"""Error codes of services and actions, and the base class of the errors that carry one."""

from __future__ import annotations

import errno
from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a request did not succeed; `msg/ErrorCode.msg` documents the same values."""

    NONE = 0
    UNKNOWN = 1
    INVALID_ARGUMENT = 2
    NOT_FOUND = 3
    ALREADY_EXISTS = 4
    NOT_ACTIVE = 5
    NOT_ARMED = 6
    STOPPED = 7
    PREEMPTED = 8
    CANCELED = 9
    TIMEOUT = 10
    STALE_FRAME = 11
    NO_ROOM = 12
    UNAVAILABLE = 13
    MISMATCH = 14
    DAMAGED = 15
    NOT_DONE = 16


class CodedError(ValueError):
    """An error whose message is meant for the client.

    Args:
        message: A sentence of the form `NAME must be REQUIREMENT (got VALUE); FIX`.
        code: The error code; None: that of the class.
    """

    code = ErrorCode.INVALID_ARGUMENT

    def __init__(self, message: object = '', code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


def failure_code(number: int) -> ErrorCode:
    """Return the code of an unsuccessful response; UNKNOWN for NONE and for unknown numbers."""
    try:
        return ErrorCode(number) or ErrorCode.UNKNOWN
    except ValueError:
        return ErrorCode.UNKNOWN


FULL = errno.ENOSPC, errno.EDQUOT
BY_TYPE = (  # the first matching class decides
    (TimeoutError, ErrorCode.TIMEOUT),
    (MemoryError, ErrorCode.NO_ROOM),
    (OSError, ErrorCode.UNAVAILABLE),
    (LookupError, ErrorCode.NOT_FOUND),
    (ValueError, ErrorCode.INVALID_ARGUMENT),
)


def code_of(error: BaseException) -> ErrorCode:
    """Return the code of an error: its own, or that of its type."""
    code = getattr(error, 'code', None)
    if isinstance(code, ErrorCode):
        return code
    if isinstance(error, OSError) and error.errno in FULL:
        return ErrorCode.NO_ROOM
    return next((c for kind, c in BY_TYPE if isinstance(error, kind)), ErrorCode.UNKNOWN)
