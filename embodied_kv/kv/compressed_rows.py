"""Compressed copies of prefix rows, and who reads them.

A copy belongs to one stream, whose question chose its tokens, or to a frame, whose own text did;
then all streams of the frame read it. It is gone with its last reader. Knows leases. Does not know
how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.prefix_rows import PrefixRows


class CompressedRows(PrefixRows):
    """Prefix rows, and copies of them in the arena `compressed`; grace: as for prefix rows.

    allocation_failures: how often a copy was not made for want of room.
    """

    def __init__(self, prefixes: Arena, compressed: CompressedArena, grace: float = 1.0) -> None:
        super().__init__(prefixes, grace)
        self.compressed, self.allocation_failures = compressed, 0
        self._readers: dict[int, set[Lease]] = {}  # compressed row -> leases
        self._copies: dict[int, dict[str, Lease]] = {}  # prefix row -> consumer -> its own hold

    def compress(self, lease: Lease, kept: Sequence[Tensor]) -> Lease | None:
        """A lease on a copy of the leased row's kept tokens; None if there is no room for it.

        kept: of each layer, positions int64 [kv_heads, n]. The given lease stays the caller's.
        """
        with self._lock:
            budgets = [positions.shape[1] for positions in kept]
            row = self.compressed.take(budgets, int(self.prefixes.positions[lease.row]))
            if row is None:
                self.allocation_failures += 1
                return None
            copy = self._compressed_lease(lease.handle, row)
        with ExitStack() as undo:
            undo.enter_context(copy)
            self.compressed.gather(row, self.prefixes, lease.row, kept)  # nobody else knows it yet
            undo.pop_all()
        return copy

    def adopt_compressed(
        self, budgets: Sequence[int], position: int, handle: KvHandle
    ) -> Lease | None:
        """A lease on a compressed row that whoever calls fills; None if there is no room for it.

        handle: of the frame that it is a copy of, whose row need not exist.
        """
        with self._lock:
            row = self.compressed.take(budgets, position)
            return None if row is None else self._compressed_lease(handle, row)

    def keep_copy(self, consumers: Sequence[str], copy: Lease) -> None:
        """The copy is what these consumers read of its frame, as long as the frame's row lives."""
        with self._lock:
            if self._is_written(copy.handle):
                for consumer in consumers:
                    own = self._compressed_lease(copy.handle, copy.compressed_row)
                    self._copies.setdefault(copy.handle.row, {})[consumer] = own
            copy.release()

    def copy_of(self, handle: KvHandle, consumer: str) -> Lease | None:
        """The frame's own hold on what a consumer reads instead of the row; None: the row."""
        with self._lock:
            if self._generation(handle.row) != handle.generation:
                return None
            return self._copies.get(handle.row, {}).get(consumer)

    def acquire(self, handle: KvHandle, consumer: str = '') -> Lease:
        """As `PrefixRows.acquire`; for a consumer whose copy there is, a lease on that alone."""
        with self._lock:
            lease = super().acquire(handle)
            copy = self.copy_of(handle, consumer)
            if copy is None:
                return lease
            lease.release()
            return self._compressed_lease(handle, copy.compressed_row)

    def share(self, lease: Lease) -> Lease:
        """Another lease on what this one reads."""
        with self._lock:
            if lease.is_copy:
                return self._compressed_lease(lease.handle, lease.compressed_row)
            return super().acquire(lease.handle)

    def _compressed_lease(self, handle: KvHandle, row: int) -> Lease:
        lease = Lease(handle, self._give_copy_back, row)
        self._readers.setdefault(row, set()).add(lease)
        return lease

    def _give_copy_back(self, lease: Lease) -> None:
        with self._lock:
            readers = self._readers[lease.compressed_row]
            readers.remove(lease)
            if not readers:
                del self._readers[lease.compressed_row]
                self.compressed.give(lease.compressed_row)

    def _is_out(self, lease: Lease) -> bool:
        """Whether the lease was given and has not come back."""
        if lease.is_copy:
            return lease in self._readers.get(lease.compressed_row, ())
        return lease in self._leases.get(lease.row, ())

    def _forget(self, row: int) -> None:
        """The prefix row is free: what its frame held of copies goes, too."""
        for copy in self._copies.pop(row, {}).values():
            copy.release()

    @property
    def bytes_saved(self) -> int:
        """Full rows that would be held if nothing were compressed, less what the copies take.

        Negative where many streams keep copies of their own of one frame.
        """
        with self._lock:
            frames = {
                (lease.handle.row, lease.handle.generation): lease.handle
                for readers in self._readers.values()
                for lease in readers
            }
            gone = [h for h in frames.values() if not self._is_written(h)]
            per_token, layers = self.compressed.bytes_per_token, len(self.compressed.layers)
            full = sum(handle.length for handle in gone) * layers
            return (full - self.compressed.tokens_used) * per_token

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: a row of the arena is taken if it is read."""
        super().check_integrity()
        self.compressed.check_integrity()
        for row in range(self.compressed.rows):
            free, read = row in self.compressed, row in self._readers
            assert read != free, f'compressed row {row}: read is {read}, free is {free}'
        for row in self._copies:
            assert row not in self._free_prefixes, f'prefix row {row} is free and has copies'
