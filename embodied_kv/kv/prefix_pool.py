"""Prefix rows: written once, read by lease, freed when superseded and not leased.

A frame may be reduced: its row is freed, and its compressed copies stay until the next frame.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.handle import KvHandle, Lease, LeasedPool, Place, StaleHandleError
from embodied_kv.kv.pool import Evictable, HeldRow
from embodied_kv.kv.rows import FreeRows, OutOfRowsError

FACTS = 'length', 'robot', 'sequence', 'stamp'  # checked in a caller's handle


class PrefixPool(LeasedPool):
    """The rows of one arena; each is held by a writer, as a robot's newest frame, or by leases.

    on_free: called with each frame that is freed. with_copies: returns the frames with copies.
    copies_of: given a frame and the number of its holders, returns the copies that are freed with
    it. grace: time (s) that a frame without a lease outlives its deadline. clock: s, steady.
    prefills: number of committed frames.
    """

    arena: Arena
    name, is_copy = 'prefixes', False

    def __init__(
        self,
        arena: Arena,
        lock: RLock,
        on_free: Callable[[Place], object],
        with_copies: Callable[[], Iterable[Place]],
        copies_of: Callable[[Place, int], list[HeldRow]],
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(arena, lock)
        self.process_id = uuid.uuid4().hex
        self.grace, self.prefills, self.bytes_reserved, self._attached_bytes = grace, 0, 0, 0
        self._clock, self._on_free = clock, on_free
        self._with_copies, self._copies_of = with_copies, copies_of
        self._free = FreeRows(arena.rows)
        self._writing: set[int] = set()
        self._frames: dict[int, KvHandle] = {}  # by row
        self._current: dict[str, KvHandle] = {}  # the newest frame of each robot, in its row
        self._reduced: dict[str, KvHandle] = {}  # the newest frame of each robot, without its row
        self._attached: dict[int, tuple[object, int]] = {}  # row -> value and its bytes
        self._written_at, self._used_at = [0.0] * arena.rows, [0.0] * arena.rows

    @property
    def bytes(self) -> int:
        return super().bytes + self._attached_bytes

    @property
    def bytes_used(self) -> int:
        return super().bytes_used + self._attached_bytes

    @property
    def rows_free(self) -> int:
        return len(self._free)

    # ------------------------------------------------------------------ writing

    def allocate(self, count: int) -> list[int]:
        """Return `count` free rows; each must be committed, adopted or abandoned.

        Raises OutOfRowsError, and allocates none, if fewer are free.
        """
        with self._lock:
            if count > len(self._free):
                raise OutOfRowsError(
                    f'{count} wanted, but {self.arena.rows - len(self._free)} of '
                    f'{self.arena.rows} prefix rows are leased, being written or the newest of '
                    'their robots: release leases, or raise engine.rows'
                )
            rows = [self._free.allocate() for _ in range(count)]
            self.arena.clear(rows)
            self._writing.update(rows)
            self.bytes_reserved += count * self.arena.bytes_per_row
            return rows

    def commit(
        self,
        row: int,
        length: int,
        *,
        robot: str,
        sequence: int,
        stamp: int,
        deadline: float,
        prefill_ms: float = 0.0,
    ) -> KvHandle:
        """Publish a written row as the newest frame of its robot; the row is then immutable."""
        with self._lock:
            handle = self._written(row, length, robot, sequence, stamp, deadline, prefill_ms)
            self._drop_reduced(robot)
            superseded = self._current.get(robot)
            self._current[robot] = handle
            self.prefills += 1
            if superseded is not None:
                self._free_if_unheld(superseded.row)
            return handle

    def adopt(self, row: int, length: int, *, robot: str, sequence: int, stamp: int) -> Lease:
        """Publish a row with an earlier frame, and return the only lease on it.

        The frame is not the newest of a robot, its deadline has passed, and it is freed with its
        last lease.
        """
        with self._lock:
            return self._lease(self._written(row, length, robot, sequence, stamp, -math.inf), row)

    def _written(
        self,
        row: int,
        length: int,
        robot: str,
        sequence: int,
        stamp: int,
        deadline: float,
        prefill_ms: float = 0.0,
    ) -> KvHandle:
        self._written_at[row] = self._used_at[row] = self._clock()
        self.arena.set_length(row, length)
        self._writing.remove(row)
        self.bytes_reserved -= self.arena.bytes_per_row - self.arena.bytes_of(row)
        here, layout = (self.process_id, *self.place(row)), self.arena.layout
        handle = KvHandle(*here, sequence, length, layout, stamp, deadline, prefill_ms, robot)
        self._frames[row] = handle
        return handle

    def abandon(self, row: int) -> None:
        """Free an allocated row whose prefill failed."""
        with self._lock:
            self._writing.remove(row)
            self.bytes_reserved -= self.arena.bytes_per_row
            self._free_if_unheld(row)

    def place(self, row: int) -> Place:
        """Return row and generation of a row as it is allocated now."""
        return row, self._free.generation[row]

    def is_writing(self, place: Place) -> bool:
        """Return whether the writer of that allocation still holds the row."""
        with self._lock:
            return place[0] in self._writing and self.place(place[0]) == place

    # ------------------------------------------------------------------ reading

    def acquire(self, handle: KvHandle) -> Lease:
        """Return a lease on the handle's row, with the pool's own handle of the frame.

        Raises StaleHandleError if the frame is gone, or the handle differs in FACTS from the
        pool's.
        """
        frame, here = f'frame {handle.sequence}', self.process_id[:8]
        with self._lock:
            if handle.process_id != self.process_id:
                raise StaleHandleError(
                    f'{frame} lies in another process (process id {handle.process_id[:8]}, here '
                    f'{here}): its rows cannot be read from here'
                )
            if handle.layout != self.arena.layout:
                raise StaleHandleError(f'{frame} has another cache layout')
            if not 0 <= handle.row < self.arena.rows:
                raise StaleHandleError(f'{frame} names row {handle.row}, which does not exist')
            if self.is_reduced(handle):
                raise StaleHandleError(
                    f'{frame} has no row: only its compressed copy for language is kept'
                )
            if not self.holds(handle):
                raise StaleHandleError(f'{frame} is gone: row {handle.row} was freed or rewritten')
            own = self._frames[handle.row]
            _require_facts(handle, own)
            return self._lease(own, own.row)

    @contextmanager
    def leases(self, handles: Sequence[KvHandle]) -> Iterator[list[Lease]]:
        """Hold leases on all of these rows within the context. Raises StaleHandleError."""
        with ExitStack() as held:
            yield [held.enter_context(self.acquire(handle)) for handle in handles]

    @property
    def leased(self) -> int:
        """Return the number of leases."""
        with self._lock:
            return sum(map(len, self._leases.values()))

    def current(self, robot: str = '') -> KvHandle | None:
        """Return the newest frame of a robot, which may be reduced; None if it is gone."""
        with self._lock:
            return self._current.get(robot) or self._reduced.get(robot)

    def acquire_current(self, robot: str) -> Lease | None:
        """Return a lease on the row of a robot's newest frame; None if it is gone or reduced."""
        with self._lock:
            handle = self._current.get(robot)
            return None if handle is None else self._lease(handle, handle.row)

    def holds(self, handle: KvHandle) -> bool:
        """Return whether the handle's row still holds its frame."""
        with self._lock:
            exists = 0 <= handle.row < self.arena.rows and self.place(handle.row) == handle.place
            return exists and handle.row not in self._free and handle.row not in self._writing

    # ------------------------------------------------------------------ reduced frames

    def reduce(self, handle: KvHandle) -> bool:
        """Free the row of a robot's newest frame, and keep its copies until the next frame.

        Returns False, and frees nothing, if the row is leased or not that of the newest frame.
        """
        with self._lock:
            if self._current.get(handle.robot) != handle or self._leases.get(handle.row):
                return False
            self._reduced[handle.robot] = self._current.pop(handle.robot)
            self._free_row(handle.row)
            return True

    def is_reduced(self, handle: KvHandle) -> bool:
        """Return whether this frame is the newest of its robot, without its row.

        Raises StaleHandleError if the handle differs in FACTS from the pool's.
        """
        with self._lock:
            own = self._reduced.get(handle.robot)
            here = handle.process_id == self.process_id and handle.layout == self.arena.layout
            if own is None or not here or own.place != handle.place:
                return False
            _require_facts(handle, own)
            return True

    def reduced(self) -> list[KvHandle]:
        """Return the newest frames without rows."""
        with self._lock:
            return [*self._reduced.values()]

    def _drop_reduced(self, robot: str) -> None:
        if reduced := self._reduced.pop(robot, None):
            self._on_free(reduced.place)

    # ------------------------------------------------------------------ attached values

    def attach(self, handle: KvHandle, value: object, size: int) -> bool:
        """Keep a value with the handle's frame until the row is freed, and drop the previous one.

        size: bytes of the value, which the caller has claimed and which count as the row's.
        Returns False, and keeps nothing, if the row no longer holds the frame.
        """
        with self._lock:
            if not self.holds(handle):
                return False
            self._detach(handle.row)
            self._attached[handle.row] = value, size
            self._attached_bytes += size
            self.bytes_reserved += size
            return True

    def attached(self, handle: KvHandle) -> object | None:
        """Return what is kept with the handle's frame; None if there is nothing."""
        with self._lock:
            return self._attached.get(handle.row, (None,))[0] if self.holds(handle) else None

    def _detach(self, row: int) -> None:
        _, size = self._attached.pop(row, (None, 0))
        self._attached_bytes -= size
        self.bytes_reserved -= size

    def _bytes_of(self, row: int) -> int:
        return self.arena.bytes_of(row) + self._attached.get(row, (None, 0))[1]

    # ------------------------------------------------------------------ leases

    def _on_return(self, row: int) -> None:
        self._used_at[row] = self._clock()
        self._free_if_unheld(row)

    def _freed_with_row(self, lease: Lease, holders: int) -> list[HeldRow]:
        return [] if self._is_current(lease.row) else self._held(lease.handle, holders)

    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return as `LeasedPool.freeable`, with 0 bytes for the newest frame of a robot."""
        with self._lock:
            sizes = self.arena.lengths[0] * np.int64(self.arena.bytes_of_token)
            for row, (_, size) in self._attached.items():
                sizes[row] += size
            for place in self._with_copies():
                if self.place(place[0]) == place:  # else the frame is reduced
                    sizes[place[0]] += sum(held.bytes for held in self._copies_of(place, 1))
            sizes[[frame.row for frame in self._current.values()]] = 0
            return self._lease_counts, sizes

    # ------------------------------------------------------------------ eviction

    def retire(self, handle: KvHandle) -> None:
        """Stop treating a frame as the newest of its robot; it is freed with its last lease."""
        with self._lock:
            if self.is_reduced(handle):
                self._drop_reduced(handle.robot)
            elif self._current.get(handle.robot) == handle:
                del self._current[handle.robot]
                self._free_if_unheld(handle.row)

    def expire(self, now: float) -> None:
        """Free frames without a lease after deadline and grace. now: s, steady clock."""
        with self._lock:
            for handle in [h for h in self._current.values() if self._is_expired(h, now)]:
                self.retire(handle)

    def evictable(self) -> list[Evictable]:
        """Return offers of the frames without a lease that are older than the grace."""
        with self._lock:
            return [self._offer(h) for h in self._current.values() if self._is_unneeded(h)]

    def _offer(self, handle: KvHandle) -> Evictable:
        held = self._held(handle)
        size, cost = sum(row.bytes for row in held), handle.prefill_ms / 1e3
        evict, idle = partial(self._evict, handle), self._clock() - self._used_at[handle.row]
        return Evictable(size, cost, evict, idle, holds=tuple(held))

    def _is_unneeded(self, handle: KvHandle) -> bool:
        # A frame without a deadline is kept for the grace, in which its caller leases it.
        now = self._clock()
        return self._is_expired(handle, now) and now - self._written_at[handle.row] > self.grace

    def _evict(self, handle: KvHandle) -> int:
        with self._lock:
            if not (self._current.get(handle.robot) == handle and self._is_unneeded(handle)):
                return 0
            freed = self._offer(handle).size
            self.retire(handle)
            return freed

    def is_past(self, handle: KvHandle, now: float) -> bool:
        """Return whether deadline and grace of a frame have passed. now: s, steady clock."""
        return handle.deadline + self.grace < now

    def _is_expired(self, handle: KvHandle, now: float) -> bool:
        return self.is_past(handle, now) and not self._leases.get(handle.row)

    def _held(self, handle: KvHandle, holders: int = 1) -> list[HeldRow]:
        """Return the rows that are freed with a frame. holders: number of its holders."""
        own = HeldRow(self, handle.row, self._bytes_of(handle.row), holders)
        return [own, *self._copies_of(handle.place, holders)]

    def _free_if_unheld(self, row: int) -> None:
        if self._leases.get(row) or row in self._writing or self._is_current(row):
            return
        self._free_row(row)
        self._on_free(self.place(row))

    def _free_row(self, row: int) -> None:
        self._frames.pop(row, None)
        self._detach(row)
        self.bytes_reserved -= self.arena.bytes_of(row)
        self.arena.set_length(row, 0)
        self._free.free(row)

    def _is_current(self, row: int) -> bool:
        frame = self._frames.get(row)
        return frame is not None and self._current.get(frame.robot) is frame

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant that is violated: free + held = rows."""
        with self._lock:
            current = {handle.row for handle in self._current.values()}
            for row in range(self.arena.rows):
                readable = row in current or bool(self._leases.get(row))
                held = readable or row in self._writing
                assert held != (row in self._free), f'prefix row {row}: held is {held}'
                length = int(self.arena.lengths[0, row])
                assert readable == (length > 0), f'prefix row {row}: {length} tokens, held: {held}'
                assert readable == (row in self._frames), f'prefix row {row}: held is {held}'
            assert not self._reduced.keys() & self._current.keys(), 'a newest frame has two places'
            self._check_lease_counts()
            attached = sum(size for _, size in self._attached.values())
            assert (
                attached == self._attached_bytes and self._attached.keys() <= self._frames.keys()
            )
            reserved = self.bytes_used + len(self._writing) * self.arena.bytes_per_row
            assert self.bytes_reserved == reserved, f'{self.bytes_reserved}, not {reserved} bytes'


def _require_facts(handle: KvHandle, own: KvHandle) -> None:
    """Raise StaleHandleError if a caller's handle of a frame differs from the pool's own."""
    if wrong := [f for f in FACTS if getattr(handle, f) != getattr(own, f)]:
        there = ', '.join(f'{f} {getattr(own, f)!r}' for f in wrong)
        given = ', '.join(repr(getattr(handle, f)) for f in wrong)
        raise StaleHandleError(
            f'the handle of frame {handle.sequence} must have {there} (got {given}); use the '
            'handle as the engine returned it'
        )
