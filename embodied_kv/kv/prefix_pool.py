"""Prefix rows: written once, read by lease, freed when superseded and unleased.

Knows frames, handles and leases. Does not know streams, nor what copies a frame has.
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
from embodied_kv.kv.handle import KvHandle, Lease, Place, StaleHandleError
from embodied_kv.kv.pool import Evictable, Held
from embodied_kv.kv.rows import FreeRows, OutOfRows

FACTS = 'length', 'robot', 'sequence', 'stamp'  # of a frame, which a caller's handle must repeat


class PrefixPool:
    """The rows of one arena and who holds them: a writer, the newest frame of a robot, or leases.

    lock: of all pools of a manager. on_free: called with each frame that goes. with_copies: the
    frames that hold copies. beside: what goes with a frame that goes with so many offers. grace:
    seconds that an unleased frame outlives its deadline. clock: s, steady. prefills: frames that
    were committed.
    """

    name = 'prefixes'

    def __init__(
        self,
        arena: Arena,
        lock: RLock,
        on_free: Callable[[Place], object],
        with_copies: Callable[[], Iterable[Place]],
        beside: Callable[[Place, int], list[Held]],
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.process_id = uuid.uuid4().hex
        self.arena, self.grace, self.prefills, self.bytes_reserved = arena, grace, 0, 0
        self._attached_bytes = 0
        self._lock, self._clock, self._on_free = lock, clock, on_free
        self._with_copies, self._beside = with_copies, beside
        self._free = FreeRows(arena.rows)
        self._writing: set[int] = set()
        self._frames: dict[int, KvHandle] = {}  # row -> what was written into it
        self._current: dict[str, KvHandle] = {}  # the newest frame of each robot
        self._leases: dict[int, set[Lease]] = {}  # row -> leases
        self._lease_counts = np.zeros(arena.rows, np.int64)
        self._attached: dict[int, tuple[object, int]] = {}  # row -> what is kept with it, bytes
        self._written_at, self._used_at = [0.0] * arena.rows, [0.0] * arena.rows

    @property
    def bytes(self) -> int:
        return self.arena.bytes + self._attached_bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used + self._attached_bytes

    @property
    def memory(self) -> list[np.ndarray]:
        """The counts of leases, which each lease keeps true."""
        return [self._lease_counts]

    @property
    def rows_free(self) -> int:
        return len(self._free)

    # ------------------------------------------------------------------ writing

    def take(self, count: int) -> list[int]:
        """Free rows to write prefixes into; each is committed, adopted or abandoned afterwards.

        Raises OutOfRows, and takes none, if there are not as many.
        """
        with self._lock:
            if count > len(self._free):
                raise OutOfRows(
                    f'{count} wanted, but {self.arena.rows - len(self._free)} of '
                    f'{self.arena.rows} prefix rows are leased, being written or the newest of '
                    'their robots: release leases, or raise engine.rows'
                )
            rows = [self._free.take() for _ in range(count)]
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
        """The row is written: nobody changes it from here on.

        Supersedes the robot's frame before.
        """
        with self._lock:
            facts = dict(robot=robot, sequence=sequence, stamp=stamp)
            handle = self._written(row, length, deadline, prefill_ms, **facts)
            superseded = self._current.get(robot)
            self._current[robot] = handle
            self.prefills += 1
            if superseded is not None:
                self._free_if_unheld(superseded.row)
            return handle

    def adopt(self, row: int, length: int, *, robot: str, sequence: int, stamp: int) -> Lease:
        """The row is written with a frame of another time: readable by this lease alone.

        It is nobody's newest frame, its deadline is over, and it goes with its last lease.
        """
        with self._lock:
            facts = dict(robot=robot, sequence=sequence, stamp=stamp)
            return self._lease(self._written(row, length, -math.inf, 0.0, **facts))

    def _written(
        self, row: int, length: int, deadline: float, prefill_ms: float, **frame: str | int
    ) -> KvHandle:
        """The handle of a reserved row that holds `length` tokens now."""
        self._written_at[row] = self._used_at[row] = self._clock()
        self.arena.set_length(row, length)
        self._writing.remove(row)
        self.bytes_reserved -= self.arena.bytes_per_row - self.arena.bytes_of(row)
        handle = KvHandle(
            self.process_id,
            *self.place(row),
            length=length,
            layout=self.arena.layout,
            deadline=deadline,
            prefill_ms=prefill_ms,
            **frame,
        )
        self._frames[row] = handle
        return handle

    def abandon(self, row: int) -> None:
        """The prefill into a reserved row failed."""
        with self._lock:
            self._writing.remove(row)
            self.bytes_reserved -= self.arena.bytes_per_row
            self._free_if_unheld(row)

    def place(self, row: int) -> Place:
        """What a row is called while it is not given to another writer."""
        return row, self._free.generation[row]

    def is_writing(self, place: Place) -> bool:
        """Whether the row is still being written by whoever took it then."""
        with self._lock:
            return place[0] in self._writing and self.place(place[0]) == place

    # ------------------------------------------------------------------ reading

    def acquire(self, handle: KvHandle) -> Lease:
        """Return a lease on the handle's row; the lease has the pool's own handle of the frame.

        Raises:
            StaleHandleError: The frame is gone, or the handle states other facts than the pool
            recorded.
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
            if not self.holds(handle):
                raise StaleHandleError(f'{frame} is gone: row {handle.row} was freed or rewritten')
            own = self._frames[handle.row]
            if wrong := [f for f in FACTS if getattr(handle, f) != getattr(own, f)]:
                there = ', '.join(f'{f} {getattr(own, f)!r}' for f in wrong)
                given = ', '.join(repr(getattr(handle, f)) for f in wrong)
                raise StaleHandleError(
                    f'the handle of {frame} must have {there} (got {given}); use the handle as '
                    'the engine returned it'
                )
            return self._lease(own)

    @contextmanager
    def leases(self, handles: Sequence[KvHandle]) -> Iterator[list[Lease]]:
        """The rights to read all of these rows, for as long as the block. Raises StaleHandleError."""
        with ExitStack() as held:
            yield [held.enter_context(self.acquire(handle)) for handle in handles]

    @property
    def leased(self) -> int:
        """Leases that are out."""
        with self._lock:
            return sum(map(len, self._leases.values()))

    def current(self, robot: str = '') -> KvHandle | None:
        """The newest frame of a robot, if it is still there."""
        with self._lock:
            return self._current.get(robot)

    def acquire_current(self, robot: str) -> Lease | None:
        """The right to read the newest frame of a robot, if it is still there."""
        with self._lock:
            handle = self._current.get(robot)
            return None if handle is None else self._lease(handle)

    def holds(self, handle: KvHandle) -> bool:
        """Whether the handle's row still holds its frame."""
        with self._lock:
            exists = 0 <= handle.row < self.arena.rows and self.place(handle.row) == handle.place
            return exists and handle.row not in self._free and handle.row not in self._writing

    # ------------------------------------------------------------------ what is kept with a row

    def attach(self, handle: KvHandle, value: object, size: int) -> bool:
        """Keep a value with the handle's frame until the row is free, in place of one before.

        Args:
            handle: The frame.
            value: What `attached` returns for the frame.
            size: Bytes of the value, which the caller has claimed; they count as the row's.

        Returns:
            Whether the row still holds the frame; the value is not kept otherwise.
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
        """In use by a row, with what is kept with it."""
        return self.arena.bytes_of(row) + self._attached.get(row, (None, 0))[1]

    # ------------------------------------------------------------------ leases

    def has_out(self, lease: Lease) -> bool:
        """Whether the lease was given and has not come back."""
        return lease in self._leases.get(lease.row, ())

    def _lease(self, handle: KvHandle) -> Lease:
        lease = Lease(handle, self)
        self._leases.setdefault(handle.row, set()).add(lease)
        self._lease_counts[handle.row] += 1
        return lease

    def share(self, lease: Lease) -> Lease:
        """As `Lease.share`."""
        return self.acquire(lease.handle)

    def give_back(self, lease: Lease) -> None:
        """As `Lease.release`."""
        with self._lock:
            self._used_at[lease.row] = self._clock()
            self._leases[lease.row].remove(lease)
            self._lease_counts[lease.row] -= 1
            self._free_if_unheld(lease.row)

    def freed_with(self, lease: Lease, readers: int) -> list[Held]:
        """As `Lease.freed_with`."""
        with self._lock:
            holders = len(self._leases[lease.row])
            if self._is_current(lease.row) or holders > readers:
                return []
            return self._held(lease.handle, holders)

    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `LeaseOwner.freeable`: a row that is a robot's newest frame is not freed."""
        with self._lock:
            sizes = self.arena.lengths[0] * np.int64(self.arena.bytes_of_token)
            for row, (_, size) in self._attached.items():
                sizes[row] += size
            for place in self._with_copies():
                sizes[place[0]] += sum(held.bytes for held in self._beside(place, 1))
            sizes[[frame.row for frame in self._current.values()]] = 0
            return self._lease_counts, sizes

    # ------------------------------------------------------------------ giving up

    def retire(self, handle: KvHandle) -> None:
        """It is nobody's newest frame from here on, and goes with its last lease."""
        with self._lock:
            if self._current.get(handle.robot) == handle:
                del self._current[handle.robot]
                self._free_if_unheld(handle.row)

    def expire(self, now: float) -> None:
        """Frees what nobody leases after its deadline and the grace. now: s, steady clock."""
        with self._lock:
            for handle in [h for h in self._current.values() if self._is_expired(h, now)]:
                self.retire(handle)

    def evictable(self) -> list[Evictable]:
        """Unleased frames whose deadline and prefill are longer ago than the grace."""
        with self._lock:
            return [self._offer(h) for h in self._current.values() if self._is_unneeded(h)]

    def _offer(self, handle: KvHandle) -> Evictable:
        held = self._held(handle)
        size, cost = sum(row.bytes for row in held), handle.prefill_ms / 1e3
        evict, idle = partial(self._evict, handle), self._clock() - self._used_at[handle.row]
        return Evictable(size, cost, evict, idle, holds=tuple(held))

    def _is_unneeded(self, handle: KvHandle) -> bool:
        """Whoever prefilled a frame without a deadline is about to lease it."""
        now = self._clock()
        return self._is_expired(handle, now) and now - self._written_at[handle.row] > self.grace

    def _evict(self, handle: KvHandle) -> int:
        with self._lock:
            if not (self._current.get(handle.robot) == handle and self._is_unneeded(handle)):
                return 0
            freed = self._offer(handle).size
            self.retire(handle)
            return freed

    def _is_expired(self, handle: KvHandle, now: float) -> bool:
        return handle.deadline + self.grace < now and not self._leases.get(handle.row)

    def _held(self, handle: KvHandle, holders: int = 1) -> list[Held]:
        """Rows that go with its frame, and that with so many offers."""
        own = Held(self, handle.row, self._bytes_of(handle.row), holders)
        return [own, *self._beside(handle.place, holders)]

    def _free_if_unheld(self, row: int) -> None:
        if self._leases.get(row) or row in self._writing or self._is_current(row):
            return
        self._leases.pop(row, None)
        self._frames.pop(row, None)
        self._detach(row)
        self.bytes_reserved -= self.arena.bytes_of(row)
        self.arena.set_length(row, 0)
        self._free.give(row)
        self._on_free(self.place(row))

    def _is_current(self, row: int) -> bool:
        """Whether it holds the newest frame of a robot."""
        frame = self._frames.get(row)
        return frame is not None and self._current.get(frame.robot) is frame

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: free + held = rows."""
        with self._lock:
            current = {handle.row for handle in self._current.values()}
            for row in range(self.arena.rows):
                readable = row in current or bool(self._leases.get(row))
                held = readable or row in self._writing
                assert held != (row in self._free), f'prefix row {row}: held is {held}'
                length = int(self.arena.lengths[0, row])
                assert readable == (length > 0), f'prefix row {row}: {length} tokens, held: {held}'
                assert readable == (row in self._frames), f'prefix row {row}: held is {held}'
                leases = len(self._leases.get(row, ()))
                assert leases == self._lease_counts[row], f'prefix row {row}: {leases} leases'
            attached = sum(size for _, size in self._attached.values())
            assert (
                attached == self._attached_bytes and self._attached.keys() <= self._frames.keys()
            )
            reserved = self.bytes_used + len(self._writing) * self.arena.bytes_per_row
            assert self.bytes_reserved == reserved, f'{self.bytes_reserved}, not {reserved} bytes'
