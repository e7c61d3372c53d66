"""Prefix rows: written once, read by lease, freed when superseded and unleased.

Knows frames, handles and leases. Does not know streams.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.handle import KvHandle, Lease, Stale
from embodied_kv.kv.rows import RowPool


class OutOfRows(RuntimeError):
    """There are not as many prefix rows as are wanted; the message says what holds them."""


class PrefixRows:
    """The rows of one arena and who holds them: a writer, the newest frame of a robot, or leases.

    grace: seconds that an unleased frame outlives its deadline.
    """

    def __init__(self, prefixes: Arena, grace: float = 1.0) -> None:
        self.process_id = uuid.uuid4().hex
        self.prefixes, self.grace = prefixes, grace
        self._lock = threading.RLock()
        self._free_prefixes = RowPool(prefixes.rows)
        self._writing: set[int] = set()
        self._current: dict[str, KvHandle] = {}  # the newest frame of each robot
        self._leases: dict[int, set[Lease]] = {}  # row -> leases
        self._prefills = 0

    def reserve(self, now: float) -> int:
        """A free row to write a prefix into; whoever calls commits or abandons it.

        now: s, steady clock. Raises OutOfRows if every row is held.
        """
        (row,) = self._reserve(1, now)
        return row

    @contextmanager
    def reserving(self, count: int, now: float) -> Iterator[list[int]]:
        """So many rows to write prefixes into; what is not committed within is free afterwards.

        now: s, steady clock. Raises OutOfRows, and holds none, if there are not as many.
        """
        with self._lock:
            rows = self._reserve(count, now)
            generations = [self._generation(row) for row in rows]
        try:
            yield rows
        finally:
            with self._lock:
                for row, generation in zip(rows, generations, strict=True):
                    if row in self._writing and self._generation(row) == generation:
                        self.abandon(row)

    def _reserve(self, count: int, now: float) -> list[int]:
        with self._lock:
            self._expire(now)
            if (lacking := count - len(self._free_prefixes)) > 0:
                self._make_room(lacking)
            if count > len(self._free_prefixes):
                raise OutOfRows(
                    f'{count} wanted, but {self.prefixes.rows - len(self._free_prefixes)} of '
                    f'{self.prefixes.rows} prefix rows are leased, being written or the newest '
                    'of their robots: release leases, or raise engine.rows'
                )
            rows = [self._free_prefixes.take() for _ in range(count)]
            self._writing.update(rows)
            return rows

    def _make_room(self, rows: int) -> None:
        """So many are lacking; whoever extends these rows ends what it can do without."""

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
            handle = self._written(row, length, sequence, stamp, deadline, prefill_ms, robot)
            superseded = self._current.get(robot)
            self._current[robot] = handle
            self._prefills += 1
            if superseded is not None:
                self._free_if_unheld(superseded.row)
            return handle

    def adopt(self, row: int, length: int, *, robot: str, sequence: int, stamp: int) -> Lease:
        """The row is written with a frame of another time: readable by this lease alone.

        It is nobody's newest frame, its deadline is over, and it goes with its last lease.
        """
        with self._lock:
            handle = self._written(row, length, sequence, stamp, -math.inf, 0.0, robot)
            return self._lease(handle)

    def _written(
        self,
        row: int,
        length: int,
        sequence: int,
        stamp: int,
        deadline: float,
        prefill_ms: float,
        robot: str,
    ) -> KvHandle:
        """The handle of a reserved row that holds `length` tokens now."""
        self._writing.remove(row)
        self.prefixes.set_length(row, length)
        return KvHandle(
            self.process_id,
            row,
            self._free_prefixes.generation[row],
            sequence,
            length,
            self.prefixes.layout,
            stamp,
            deadline,
            prefill_ms,
            robot,
        )

    def abandon(self, row: int) -> None:
        """The prefill into a reserved row failed."""
        with self._lock:
            self._writing.remove(row)
            self._free_if_unheld(row)

    def acquire(self, handle: KvHandle) -> Lease:
        """The right to read the handle's row. Raises Stale with the reason."""
        with self._lock:
            if handle.process_id != self.process_id:
                raise Stale(
                    f'frame {handle.sequence} lies in another process (process id '
                    f'{handle.process_id[:8]}, here {self.process_id[:8]}): its rows cannot be '
                    'read from here'
                )
            if handle.layout != self.prefixes.layout:
                raise Stale(f'frame {handle.sequence} has another cache layout')
            if not 0 <= handle.row < self.prefixes.rows:
                raise Stale(
                    f'frame {handle.sequence} names row {handle.row}, which does not exist'
                )
            if not self._is_written(handle):
                raise Stale(
                    f'frame {handle.sequence} is gone: row {handle.row} was freed or rewritten'
                )
            return self._lease(handle)

    @contextmanager
    def leases(self, handles: Sequence[KvHandle]) -> Iterator[list[Lease]]:
        """The rights to read all of these rows, for as long as the block. Raises Stale."""
        with ExitStack() as held:
            yield [held.enter_context(self.acquire(handle)) for handle in handles]

    def _generation(self, row: int) -> int:
        return self._free_prefixes.generation[row]

    def _is_written(self, handle: KvHandle) -> bool:
        """Whether the handle's row still holds its frame."""
        row = handle.row
        gone = row in self._free_prefixes or row in self._writing
        return not gone and self._generation(row) == handle.generation

    def _lease(self, handle: KvHandle) -> Lease:
        lease = Lease(handle, self._give_back)
        self._leases.setdefault(handle.row, set()).add(lease)
        return lease

    def current(self, robot: str = '') -> KvHandle | None:
        """The newest frame of a robot, if it is still there."""
        with self._lock:
            return self._current.get(robot)

    def _give_back(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.row].remove(lease)
            self._free_if_unheld(lease.row)

    def _free_if_unheld(self, row: int) -> None:
        if self._leases.get(row) or row in self._writing:
            return
        if self._is_current(row):
            return
        self._leases.pop(row, None)
        self.prefixes.set_length(row, 0)
        self._free_prefixes.give(row)
        self._forget(row)

    def _is_current(self, row: int) -> bool:
        """Whether it holds the newest frame of a robot."""
        return any(handle.row == row for handle in self._current.values())

    def _forget(self, row: int) -> None:
        """The row is free; whoever extends these rows drops what belonged to its frame."""

    def _expire(self, now: float) -> None:
        for robot, handle in list(self._current.items()):
            if handle.deadline + self.grace < now and not self._leases.get(handle.row):
                del self._current[robot]
                self._free_if_unheld(handle.row)

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: free + held = rows."""
        with self._lock:
            current = {handle.row for handle in self._current.values()}
            for row in range(self.prefixes.rows):
                readable = row in current or bool(self._leases.get(row))
                held = readable or row in self._writing
                free = row in self._free_prefixes
                assert held != free, f'prefix row {row}: held is {held}, free is {free}'
                length = int(self.prefixes.lengths[0, row])
                assert readable == (length > 0), f'prefix row {row}: {length} tokens, held: {held}'
