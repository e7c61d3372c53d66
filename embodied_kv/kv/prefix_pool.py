"""Prefix rows: written once, read by lease, freed when superseded and unleased.

Knows frames, handles and leases. Does not know streams, nor what copies a frame has.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.handle import KvHandle, Lease, Place, RowLease, Stale
from embodied_kv.kv.pool import Evictable, Held
from embodied_kv.kv.rows import FreeRows, OutOfRows


class PrefixPool:
    """The rows of one arena and who holds them: a writer, the newest frame of a robot, or leases.

    lock: of all pools of a manager. on_free: called with each frame that goes. beside: what goes
    with a frame that goes with so many offers. grace: seconds that an unleased frame outlives its
    deadline. clock: s, steady. prefills: frames that were committed.
    """

    name = 'prefixes'

    def __init__(
        self,
        arena: Arena,
        lock: RLock,
        on_free: Callable[[Place], object],
        beside: Callable[[Place, int], list[Held]],
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.process_id = uuid.uuid4().hex
        self.arena, self.grace, self.prefills, self.bytes_reserved = arena, grace, 0, 0
        self._lock, self._clock, self._on_free, self._beside = lock, clock, on_free, beside
        self._free = FreeRows(arena.rows)
        self._writing: set[int] = set()
        self._current: dict[str, KvHandle] = {}  # the newest frame of each robot
        self._leases: dict[int, set[RowLease]] = {}  # row -> leases
        self._written_at, self._used_at = [0.0] * arena.rows, [0.0] * arena.rows

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used

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

    def adopt(self, row: int, length: int, *, robot: str, sequence: int, stamp: int) -> RowLease:
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
        return KvHandle(
            self.process_id,
            *self.place(row),
            length=length,
            layout=self.arena.layout,
            deadline=deadline,
            prefill_ms=prefill_ms,
            **frame,
        )

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

    def acquire(self, handle: KvHandle) -> RowLease:
        """The right to read the handle's row. Raises Stale with the reason."""
        frame, here = f'frame {handle.sequence}', self.process_id[:8]
        with self._lock:
            if handle.process_id != self.process_id:
                raise Stale(
                    f'{frame} lies in another process (process id {handle.process_id[:8]}, here '
                    f'{here}): its rows cannot be read from here'
                )
            if handle.layout != self.arena.layout:
                raise Stale(f'{frame} has another cache layout')
            if not 0 <= handle.row < self.arena.rows:
                raise Stale(f'{frame} names row {handle.row}, which does not exist')
            if not self.holds(handle):
                raise Stale(f'{frame} is gone: row {handle.row} was freed or rewritten')
            return self._lease(handle)

    @contextmanager
    def leases(self, handles: Sequence[KvHandle]) -> Iterator[list[RowLease]]:
        """The rights to read all of these rows, for as long as the block. Raises Stale."""
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

    def acquire_current(self, robot: str) -> RowLease | None:
        """The right to read the newest frame of a robot, if it is still there."""
        with self._lock:
            handle = self._current.get(robot)
            return None if handle is None else self._lease(handle)

    def holds(self, handle: KvHandle) -> bool:
        """Whether the handle's row still holds its frame."""
        with self._lock:
            exists = 0 <= handle.row < self.arena.rows and self.place(handle.row) == handle.place
            return exists and handle.row not in self._free and handle.row not in self._writing

    def has_out(self, lease: RowLease) -> bool:
        """Whether the lease was given and has not come back."""
        return lease in self._leases.get(lease.row, ())

    def _lease(self, handle: KvHandle) -> RowLease:
        lease = RowLease(handle, self)
        self._leases.setdefault(handle.row, set()).add(lease)
        return lease

    def share(self, lease: RowLease) -> RowLease:
        """As `Lease.share`."""
        return self.acquire(lease.handle)

    def give_back(self, lease: RowLease) -> None:
        """As `Lease.release`."""
        with self._lock:
            self._used_at[lease.row] = self._clock()
            self._leases[lease.row].remove(lease)
            self._free_if_unheld(lease.row)

    def freed_with(self, lease: RowLease, others: Set[Lease]) -> list[Held]:
        """As `Lease.freed_with`."""
        with self._lock:
            readers = self._leases[lease.row]
            if self._is_current(lease.row) or not readers <= {lease, *others}:
                return []
            return self._held(lease.handle, len(readers))

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
            for handle in self._expired(now):
                self.retire(handle)

    def evictable(self) -> list[Evictable]:
        """Unleased frames whose deadline and prefill are longer ago than the grace."""
        with self._lock:
            return [self._offer(handle) for handle in self._unneeded()]

    def _offer(self, handle: KvHandle) -> Evictable:
        held = self._held(handle)
        size, cost = sum(row.bytes for row in held), handle.prefill_ms / 1e3
        evict, idle = partial(self._evict, handle), self._clock() - self._used_at[handle.row]
        return Evictable(size, cost, evict, idle, holds=tuple(held))

    def _unneeded(self) -> list[KvHandle]:
        """Whoever prefilled a frame without a deadline is about to lease it."""
        now = self._clock()
        return [h for h in self._expired(now) if now - self._written_at[h.row] > self.grace]

    def _evict(self, handle: KvHandle) -> int:
        with self._lock:
            if handle not in self._unneeded():
                return 0
            freed = self._offer(handle).size
            self.retire(handle)
            return freed

    def _expired(self, now: float) -> list[KvHandle]:
        frames = self._current.values()
        return [h for h in frames if h.deadline + self.grace < now and not self._leases.get(h.row)]

    def _held(self, handle: KvHandle, holders: int = 1) -> list[Held]:
        """Rows that go with its frame, and that with so many offers."""
        own = Held(self, handle.row, self.arena.bytes_of(handle.row), holders)
        return [own, *self._beside(handle.place, holders)]

    def _free_if_unheld(self, row: int) -> None:
        if self._leases.get(row) or row in self._writing or self._is_current(row):
            return
        self._leases.pop(row, None)
        self.bytes_reserved -= self.arena.bytes_of(row)
        self.arena.set_length(row, 0)
        self._free.give(row)
        self._on_free(self.place(row))

    def _is_current(self, row: int) -> bool:
        """Whether it holds the newest frame of a robot."""
        return any(handle.row == row for handle in self._current.values())

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
            reserved = self.bytes_used + len(self._writing) * self.arena.bytes_per_row
            assert self.bytes_reserved == reserved, f'{self.bytes_reserved}, not {reserved} bytes'
