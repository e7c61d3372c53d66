"""Compressed copies of prefix rows, and who reads them.

A copy belongs to one stream, whose question chose its tokens, or to a frame, whose own text did;
then all streams of the frame read it. It is gone with its last reader. Knows leases. Does not know
how tokens are chosen, nor whether a frame is still there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from threading import RLock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget, OverBudget
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.handle import CopyLease, KvHandle, Place, RowLease
from embodied_kv.kv.pool import GONE, Evictable, Held, Offers


class CopyPool:
    """Copies, in `arena`, of rows of `source`; lock: of all pools of a manager.

    allocation_failures: how often a copy was not made for want of room. scoring_failures: how
    often none was made because the compression method failed.
    """

    name = 'copies'

    def __init__(
        self, arena: CompressedArena, source: Arena, lock: RLock, kv_budget: KvBudget | None = None
    ) -> None:
        self.arena, self.allocation_failures, self.scoring_failures = arena, 0, 0
        self._source, self._lock, self._kv_budget = source, lock, kv_budget or KvBudget()
        self._readers: dict[int, set[CopyLease]] = {}  # compressed row -> leases
        self._lease_counts = np.zeros(arena.rows, np.int64)
        self._kept: dict[Place, dict[str, CopyLease]] = {}  # frame -> consumer -> its own hold

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used

    @property
    def memory(self) -> list[np.ndarray]:
        """The counts of leases, which each lease keeps true."""
        return [self._lease_counts]

    @property
    def bytes_reserved(self) -> int:
        return self.bytes_used

    def __len__(self) -> int:
        """Copies that there are."""
        return len(self._readers)

    # ------------------------------------------------------------------ making and reading

    def compress(self, lease: RowLease, kept: Sequence[Tensor]) -> CopyLease | None:
        """A lease on a copy of the leased row's kept tokens; None if there is no room for it.

        kept: of each layer, positions int64 [kv_heads, n]. The given lease stays the caller's.
        What is worth more than the policy assumes of a copy does not go for it.
        """
        budgets = [positions.shape[1] for positions in kept]
        with self._lock:
            position = int(self._source.positions[lease.row])
            copy = self.adopt(budgets, position, lease.handle, cost=0.0)
            if copy is None:
                self.allocation_failures += 1
                return None
        with ExitStack() as undo:
            undo.enter_context(copy)
            # Nobody else knows it yet.
            self.arena.gather(copy.compressed_row, self._source, lease.row, kept)
            undo.pop_all()
        return copy

    def adopt(
        self, budgets: Sequence[int], position: int, handle: KvHandle, cost: float = math.inf
    ) -> CopyLease | None:
        """A lease on a compressed row that whoever calls fills; None if there is no room for it.

        handle: of the frame that it is a copy of, whose row need not exist. cost: as of
        `KvBudget.claim`.
        """
        size = sum(budgets) * self.arena.bytes_per_token
        with self._lock, suppress(OverBudget):
            if self.arena.has_room([sum(budgets)]):
                with self._kv_budget.claim(self, size, cost):
                    return self._lease(handle, self.arena.take(budgets, position))
        return None

    def keep(self, consumers: Sequence[str], copy: CopyLease) -> None:
        """The copy is what these consumers read of its frame until `forget`; it holds the lease.

        What they read of it before goes, where nobody else reads it.
        """
        with self._lock:
            kept = self._kept.setdefault(copy.handle.place, {})
            before = {*kept.values(), copy}
            kept.update(dict.fromkeys(consumers, copy))
            for lease in before.difference(kept.values()):
                lease.release()

    def of(self, handle: KvHandle, consumer: str) -> CopyLease | None:
        """The frame's own hold on what a consumer reads instead of the row; None: the row."""
        with self._lock:
            return self._kept.get(handle.place, {}).get(consumer)

    def acquire(self, handle: KvHandle, consumer: str) -> CopyLease | None:
        """A lease on what a consumer reads instead of the frame's row; None: it reads the row."""
        with self._lock:
            own = self.of(handle, consumer)
            return None if own is None else self.share(own)

    def handles(self) -> dict[Place, KvHandle]:
        """The frames of which there are copies."""
        with self._lock:
            return {
                lease.handle.place: lease.handle
                for readers in self._readers.values()
                for lease in readers
            }

    def kept(self) -> list[KvHandle]:
        """The frames that hold copies of their own."""
        with self._lock:
            return [copy.handle for kept in self._kept.values() for copy in kept.values()]

    def has_out(self, lease: CopyLease) -> bool:
        """Whether the lease was given and has not come back."""
        return lease in self._readers.get(lease.compressed_row, ())

    def _lease(self, handle: KvHandle, row: int) -> CopyLease:
        lease = CopyLease(handle, self, row)
        self._readers.setdefault(row, set()).add(lease)
        self._lease_counts[row] += 1
        return lease

    def share(self, lease: CopyLease) -> CopyLease:
        """As `Lease.share`."""
        with self._lock:
            return self._lease(lease.handle, lease.compressed_row)

    def give_back(self, lease: CopyLease) -> None:
        """As `Lease.release`."""
        with self._lock:
            readers = self._readers[lease.compressed_row]
            readers.remove(lease)
            self._lease_counts[lease.compressed_row] -= 1
            if not readers:
                del self._readers[lease.compressed_row]
                self.arena.give(lease.compressed_row)

    def freed_with(self, lease: CopyLease, readers: int) -> list[Held]:
        """As `Lease.freed_with`."""
        with self._lock:
            row = lease.compressed_row
            holders = len(self._readers[row])
            return [self._held(row, holders)] if holders <= readers else []

    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `LeaseOwner.freeable`."""
        with self._lock:
            sizes = self.arena.lengths.sum(0, dtype=np.int64) * self.arena.bytes_per_token
            return self._lease_counts, sizes

    def _held(self, row: int, holders: int) -> Held:
        return Held(self, row, self.arena.bytes_of(row), holders)

    def _is_alone(self, lease: CopyLease) -> bool:
        """Whether nobody else reads its copy."""
        return self._readers.get(lease.compressed_row) == {lease}

    # ------------------------------------------------------------------ giving up

    def kept_places(self) -> list[Place]:
        """The frames that hold copies of their own."""
        with self._lock:
            return [place for place, kept in self._kept.items() if kept]

    def kept_by(self, place: Place, holders: int) -> list[Held]:
        """Copies that nobody but this frame holds, which goes with so many offers."""
        with self._lock:
            if place not in self._kept:
                return []
            own = set(self._kept[place].values())
            rows = {lease.compressed_row for lease in own}
            return [self._held(row, holders) for row in rows if self._readers[row] <= own]

    def forget(self, place: Place) -> None:
        """The frame is gone: what it held of copies goes, too."""
        with self._lock:
            for copy in self._kept.pop(place, {}).values():
                copy.release()

    def evictable(self) -> Offers:
        """Copies that nobody but their frame holds; its consumers read the row from then on.

        cost: 0, not known, for a copy is chosen by scores that its prefill alone can make.
        """
        with self._lock:
            copies = [
                copy
                for kept in self._kept.values()
                for copy in dict.fromkeys(kept.values())
                if self._is_alone(copy)
            ]
            _, sizes = self.freeable()
            sizes = sizes[[copy.compressed_row for copy in copies]]
            unknown = np.zeros(len(copies))
            return Offers(sizes, unknown, unknown, lambda i: self._offer(copies[i]))

    def _offer(self, copy: CopyLease) -> Evictable:
        with self._lock:
            if not self._is_alone(copy):
                return GONE
            kept, row = self._kept[copy.handle.place], copy.compressed_row
            return Evictable(
                self.arena.bytes_of(row),
                0.0,
                partial(self._evict, copy),
                consumers=tuple(consumer for consumer, own in kept.items() if own is copy),
                holds=(self._held(row, 1),),
            )

    def _evict(self, copy: CopyLease) -> int:
        """copy: a frame's own hold."""
        with self._lock:
            if not self._is_alone(copy):
                return 0
            freed = self.arena.bytes_of(copy.compressed_row)
            kept = self._kept[copy.handle.place]
            for consumer in [consumer for consumer, own in kept.items() if own is copy]:
                del kept[consumer]
            copy.release()
            return freed

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: a row of the arena is taken if it is read."""
        with self._lock:
            self.arena.check_integrity()
            for row in range(self.arena.rows):
                free, read = row in self.arena, row in self._readers
                assert read != free, f'compressed row {row}: read is {read}, free is {free}'
                leases = len(self._readers.get(row, ()))
                assert leases == self._lease_counts[row], f'compressed row {row}: {leases} leases'
            for place, kept in self._kept.items():
                for copy in kept.values():
                    assert self.has_out(copy), f'frame {place} keeps a copy without a lease'
