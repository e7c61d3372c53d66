"""The name of a row, and the right to read it, or a compressed copy of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_kv.errors import ErrorCode
from embodied_kv.kv.pool import Held

L = TypeVar('L', bound='Lease')
Place = tuple[int, int]  # row and generation: names a frame of this process for ever


class StaleHandleError(LookupError):
    """The handle's row cannot be read; the message says why."""

    code = ErrorCode.STALE_FRAME


@dataclass(frozen=True)
class KvHandle:
    """Names a prefix row and the frame in it.

    It owns nothing: `KvManager.acquire` gives a Lease or StaleHandleError.

    process_id: 32 hex digits, of the process that owns the arena. layout: 16 hex digits, of the
    arena's layout. length: valid tokens. stamp: ns on the ROS clock. deadline: s on the owner's
    steady clock.
    """

    process_id: str
    row: int
    generation: int
    sequence: int
    length: int
    layout: str
    stamp: int
    deadline: float
    prefill_ms: float = 0.0
    robot: str = ''

    @property
    def place(self) -> Place:
        """What it names within its process."""
        return self.row, self.generation


class LeaseOwner(Protocol):
    """Who gave a lease, and does what it is asked: the pool of what it reads."""

    def share(self, lease: Lease) -> Lease: ...

    def give_back(self, lease: Lease) -> None: ...

    def freed_with(self, lease: Lease, readers: int) -> list[Held]: ...

    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of leases of each row, and the bytes that the last one's end frees."""


class Lease:
    """The right to read a frame until `release`: a Lease, or a Lease.

    While one is out, nobody writes what it reads.
    """

    is_copy: ClassVar[bool]
    row: int  # that it reads, of the owner's arena

    def __init__(self, handle: KvHandle, owner: LeaseOwner) -> None:
        self.handle = handle
        self._owner: LeaseOwner | None = owner

    def freed_with(self, readers: int = 1) -> list[Held]:
        """Return the rows that are free once so many leases on what it reads are released."""
        return [] if self._owner is None else self._owner.freed_with(self, readers)

    def share(self) -> Lease:
        """Another lease on what this one reads. Raises StaleHandleError where it was released."""
        if self._owner is None:
            raise StaleHandleError(f'the lease on frame {self.handle.sequence} was released')
        return self._owner.share(self)

    def release(self) -> None:
        """Gives it back; a second call does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.give_back(self)

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Lease(Lease):
    """Reads the prefix row itself."""

    is_copy = False

    def __init__(self, handle: KvHandle, owner: LeaseOwner) -> None:
        super().__init__(handle, owner)
        self.row = handle.row


class Lease(Lease):
    """Reads a compressed copy; the prefix row is not held.

    compressed_row: of the compressed arena.
    """

    is_copy = True

    def __init__(self, handle: KvHandle, owner: LeaseOwner, compressed_row: int) -> None:
        super().__init__(handle, owner)
        self.row = self.row = compressed_row
