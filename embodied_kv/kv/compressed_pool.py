"""Compressed copies of prefix rows, and their leases.

A copy belongs to a stream, whose question selected its tokens, or to a frame, whose text selected
them; then all streams of the frame read it. It is freed with its last lease.
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
from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.handle import KvHandle, Lease, LeasedPool, Place
from embodied_kv.kv.pool import GONE, Evictable, HeldRow, Offers


class CompressedPool(LeasedPool):
    """Compressed copies, in `arena`, of rows of `source`.

    allocation_failures: number of copies that were not made for lack of room. scoring_failures:
    number that were not made because the compression method failed.
    """

    arena: CompressedArena
    name, is_copy = 'copies', True

    def __init__(
        self, arena: CompressedArena, source: Arena, lock: RLock, kv_budget: KvBudget | None = None
    ) -> None:
        super().__init__(arena, lock)
        self.allocation_failures = self.scoring_failures = 0
        self._source, self._kv_budget = source, kv_budget or KvBudget()
        self._assigned: dict[Place, dict[str, Lease]] = {}  # frame -> consumer -> its own lease
        self._sole: set[Place] = set()  # frames without rows

    @property
    def bytes_reserved(self) -> int:
        return self.bytes_used

    def __len__(self) -> int:
        """Return the number of compressed copies."""
        return len(self._leases)

    # ------------------------------------------------------------------ making and reading

    def compress(
        self,
        lease: Lease,
        kept: Sequence[Tensor],
        memory: Sequence[tuple[Tensor, Tensor]] = (),
        recall: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Lease | None:
        """Return a lease on a copy of the kept tokens of a leased row; None if there is no room.

        kept: positions int64 [kv_heads, n] of each layer. memory, recall: K and V of other tokens
        of each layer, [kv_heads, m, head_dim], that are before and behind them in the copy; the
        next token's position is behind `recall`. `lease` stays the caller's. KV that is worth more
        than the eviction order assumes for a copy is not evicted for it.
        """
        budgets = [positions.shape[1] for positions in kept]
        for others in (memory, recall):
            for layer, (k, _) in enumerate(others):
                budgets[layer] += k.shape[1]
        with self._lock:
            position = int(self._source.positions[lease.row])
            position += recall[0][0].shape[1] if recall else 0
            copy = self.adopt(budgets, position, lease.handle, cost=0.0)
            if copy is None:
                self.allocation_failures += 1
                return None
        with ExitStack() as undo:
            undo.enter_context(copy)
            self.arena.gather(copy.row, self._source, lease.row, kept, memory, recall)
            undo.pop_all()
        return copy

    def adopt(
        self,
        budgets: Sequence[int],
        position: int,
        handle: KvHandle,
        cost: float = math.inf,
        evicts: bool = True,
    ) -> Lease | None:
        """Return a lease on a compressed row that the caller fills; None without room.

        handle: the frame of the copy, whose row need not exist. cost, evicts: as in
        `KvBudget.claim`.
        """
        size = sum(budgets) * self.arena.bytes_per_token
        with self._lock, suppress(OverBudgetError):
            if self.arena.has_room([sum(budgets)]):
                with self._kv_budget.claim(self, size, cost, evicts=evicts):
                    row = self.arena.allocate(budgets, position)
                    assert row is not None  # it has room
                    return self._lease(handle, row)
        return None

    def assign(self, consumers: Sequence[str], copy: Lease) -> None:
        """Let consumers read a copy of its frame until `drop_frame`; the pool takes the lease."""
        with self._lock:
            kept = self._assigned.setdefault(copy.handle.place, {})
            before = {*kept.values(), copy}
            kept.update(dict.fromkeys(consumers, copy))
            for lease in before.difference(kept.values()):
                lease.release()

    def assigned(self, handle: KvHandle, consumer: str) -> Lease | None:
        """Return the frame's own lease on a consumer's copy; None if it reads the row."""
        with self._lock:
            return self._assigned.get(handle.place, {}).get(consumer)

    def keep_only(self, handle: KvHandle, consumer: str) -> None:
        """Release the copies that only other consumers read of a frame that has lost its row."""
        with self._lock:
            self._sole.add(handle.place)
            if (own := self.assigned(handle, consumer)) is not None:
                copies = {*self._assigned[handle.place].values()}
                self._assigned[handle.place] = {consumer: own}
                for copy in copies - {own}:
                    copy.release()

    def acquire(self, handle: KvHandle, consumer: str) -> Lease | None:
        """Return a lease on the copy that a consumer reads; None if it reads the frame's row."""
        with self._lock:
            own = self.assigned(handle, consumer)
            return None if own is None else self.share(own)

    def is_read(self, handle: KvHandle) -> bool:
        """Return whether others than the frame itself hold a lease on one of its copies."""
        with self._lock:
            kept = self._assigned.get(handle.place, {}).values()
            return not all(map(self._is_alone, kept))

    def handles(self) -> dict[Place, KvHandle]:
        """Return the frames that have copies."""
        with self._lock:
            return {
                lease.handle.place: lease.handle
                for readers in self._leases.values()
                for lease in readers
            }

    def _on_return(self, row: int) -> None:
        if row not in self._leases:
            self.arena.free(row)

    def _freed_with_row(self, lease: Lease, holders: int) -> list[HeldRow]:
        return [self._held(lease.row, holders)]

    def freeable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return leases and bytes by row; see `LeasedPool.freeable`."""
        with self._lock:
            sizes = self.arena.lengths.sum(0, dtype=np.int64) * self.arena.bytes_per_token
            return self._lease_counts, sizes

    def _held(self, row: int, holders: int) -> HeldRow:
        return HeldRow(self, row, self.arena.bytes_of(row), holders)

    def _is_evictable(self, copy: Lease) -> bool:
        """Return whether only its frame holds a copy, and the frame has its row, too."""
        return copy.handle.place not in self._sole and self._is_alone(copy)

    def _is_alone(self, lease: Lease) -> bool:
        """Return whether a lease is the only one on its copy."""
        return self._leases.get(lease.row) == {lease}

    # ------------------------------------------------------------------ eviction

    def kept_places(self) -> list[Place]:
        """Return the frames that hold copies."""
        with self._lock:
            return [place for place, kept in self._assigned.items() if kept]

    def kept_by(self, place: Place, holders: int) -> list[HeldRow]:
        """Return the copies that only this frame holds. holders: number of the frame's holders."""
        with self._lock:
            if place not in self._assigned:
                return []
            own = set(self._assigned[place].values())
            rows = {lease.row for lease in own}
            return [self._held(row, holders) for row in rows if self._leases[row] <= own]

    def drop_frame(self, place: Place) -> None:
        """Release the copies of a frame that is gone."""
        with self._lock:
            self._sole.discard(place)
            for copy in self._assigned.pop(place, {}).values():
                copy.release()

    def evictable(self) -> Offers:
        """Return offers of copies that only their frame holds; its consumers then read the row.

        cost: 0 (unknown), because the scores that chose a copy come from the prefill alone. The
        copy of a frame without a row is not offered.
        """
        with self._lock:
            copies = [
                copy
                for kept in self._assigned.values()
                for copy in dict.fromkeys(kept.values())
                if self._is_evictable(copy)
            ]
            _, sizes = self.freeable()
            sizes = sizes[[copy.row for copy in copies]]
            unknown = np.zeros(len(copies))
            return Offers(sizes, unknown, unknown, lambda i: self._offer(copies[i]))

    def _offer(self, copy: Lease) -> Evictable:
        with self._lock:
            if not self._is_evictable(copy):
                return GONE
            kept, row = self._assigned[copy.handle.place], copy.row
            return Evictable(
                self.arena.bytes_of(row),
                0.0,
                partial(self._evict, copy),
                consumers=tuple(consumer for consumer, own in kept.items() if own is copy),
                holds=(self._held(row, 1),),
            )

    def _evict(self, copy: Lease) -> int:
        with self._lock:
            if not self._is_evictable(copy):
                return 0
            freed = self.arena.bytes_of(copy.row)
            kept = self._assigned[copy.handle.place]
            for consumer in [name for name, own in kept.items() if own is copy]:
                del kept[consumer]
            copy.release()
            return freed

    def check_integrity(self) -> None:
        """Raise AssertionError unless exactly the leased rows are allocated."""
        with self._lock:
            self.arena.check_integrity()
            for row in range(self.arena.rows):
                free, read = row in self.arena, row in self._leases
                assert read != free, f'compressed row {row}: read is {read}, free is {free}'
            self._check_lease_counts()
            assert self._sole <= self._assigned.keys(), 'a frame has neither row nor copy'
            for place, kept in self._assigned.items():
                for copy in kept.values():
                    assert self.is_leased_by(copy), f'frame {place} keeps a copy without a lease'
