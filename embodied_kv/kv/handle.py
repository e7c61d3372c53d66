"""Handles that name frames, and leases that protect the rows from which they are read."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from threading import RLock
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from embodied_kv.errors import ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.pool import ArenaPool, HeldRow

Place = tuple[int, int]  # row and generation: identify a frame within this process


class StaleHandleError(LookupError):
    """The row of a handle cannot be read; the message states the reason."""

    code = ErrorCode.STALE_FRAME


@dataclass(frozen=True)
class KvHandle:
    """The name of a prefix row and of the frame in it.

    A handle owns nothing: `KvManager.acquire` returns a lease or raises StaleHandleError.

    process_id: 32 hex digits that identify the process with the arena. row, generation: the row,
    and how often it was allocated. length: number of valid tokens. layout: 16 hex digits that
    identify the layout of the arena. stamp: ns on the ROS clock. deadline: s on the steady clock.
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
        return self.row, self.generation


class Lease:
    """The right to read a row of a pool until `release`; no row is written while it is leased.

    row: a prefix row, or a compressed row if `is_copy`.
    """

    def __init__(self, handle: KvHandle, pool: LeasedPool, row: int) -> None:
        self.handle, self.row, self.is_copy = handle, row, pool.is_copy
        self._pool: LeasedPool | None = pool

    def freed_with(self, readers: int = 1) -> list[HeldRow]:
        """Return the rows that are free once `readers` leases on this row are released."""
        return [] if self._pool is None else self._pool.freed_with(self, readers)

    def share(self) -> Lease:
        """Return another lease on the same row. Raises StaleHandleError after a release."""
        if self._pool is None:
            raise StaleHandleError(f'the lease on frame {self.handle.sequence} was released')
        return self._pool.share(self)

    def release(self) -> None:
        """Return the lease to its pool; a second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.return_lease(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LeasedPool(ArenaPool):
    """A pool whose rows are read by lease, and freed with their last lease.

    lock: the lock that all pools of a manager share.
    """

    is_copy: ClassVar[bool]  # whether its rows are compressed copies

    def __init__(self, arena: Arena | CompressedArena, lock: RLock) -> None:
        super().__init__(arena, lock)
        self._leases: dict[int, set[Lease]] = {}  # row -> its leases, at least one
        self._lease_counts = np.zeros(arena.rows, np.int64)

    @property
    def memory(self) -> list[np.ndarray]:
        """Return the numbers of leases by row."""
        return [self._lease_counts]

    def is_leased_by(self, lease: Lease) -> bool:
        """Return whether the lease was not released yet."""
        return lease in self._leases.get(lease.row, ())

    def _lease(self, handle: KvHandle, row: int) -> Lease:
        lease = Lease(handle, self, row)
        self._leases.setdefault(row, set()).add(lease)
        self._lease_counts[row] += 1
        return lease

    def share(self, lease: Lease) -> Lease:
        """Return another lease on the same row. Raises StaleHandleError after a release."""
        with self._lock:
            if not self.is_leased_by(lease):
                raise StaleHandleError(f'the lease on frame {lease.handle.sequence} was released')
            return self._lease(lease.handle, lease.row)

    def return_lease(self, lease: Lease) -> None:
        """Remove a lease, and free its row if nothing else holds it."""
        with self._lock:
            leases = self._leases[lease.row]
            leases.remove(lease)
            if not leases:
                del self._leases[lease.row]
            self._lease_counts[lease.row] -= 1
            self._on_return(lease.row)

    def freed_with(self, lease: Lease, readers: int) -> list[HeldRow]:
        """Return the rows that are free once `readers` leases on the row are released."""
        with self._lock:
            holders = len(self._leases[lease.row])
            return self._freed_with_row(lease, holders) if holders <= readers else []

    @abstractmethod
    def _on_return(self, row: int) -> None:
        """Free the row if nothing holds it."""

    @abstractmethod
    def _freed_with_row(self, lease: Lease, holders: int) -> list[HeldRow]:
        """Return the rows that are freed when the row's last lease, of `holders`, is released."""

    @abstractmethod
    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return by row the number of leases, and the bytes that its last lease frees."""

    def _check_lease_counts(self) -> None:
        for row in range(self.arena.rows):
            leases = len(self._leases.get(row, ()))
            assert leases == self._lease_counts[row], f'{self.name}, row {row}: {leases} leases'
