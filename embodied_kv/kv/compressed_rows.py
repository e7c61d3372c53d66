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
    """Prefix rows, and compressed copies of them in `flats`; grace: as for prefix rows.

    allocation_failures: how often a copy was not made for want of room.
    """

    def __init__(self, prefixes: Arena, flats: CompressedArena, grace: float = 1.0) -> None:
        super().__init__(prefixes, grace)
        self.flats, self.allocation_failures = flats, 0
        self._readers: dict[int, set[Lease]] = {}  # flat row -> leases
        self._copies: dict[int, dict[str, Lease]] = {}  # prefix row -> consumer -> its own hold

    def compress(self, lease: Lease, kept: Sequence[Tensor]) -> Lease | None:
        """A lease on a copy of the leased row's kept tokens; None if there is no room for it.

        kept: of each layer, positions int64 [kv_heads, n]. The given lease stays the caller's.
        """
        with self._lock:
            budgets = [positions.shape[1] for positions in kept]
            flat = self.flats.take(budgets, int(self.prefixes.positions[lease.row]))
            if flat is None:
                self.allocation_failures += 1
                return None
            copy = self._flat_lease(lease.handle, flat)
        with ExitStack() as undo:
            undo.enter_context(copy)
            self.flats.gather(flat, self.prefixes, lease.row, kept)  # nobody else knows it yet
            undo.pop_all()
        return copy

    def adopt_flat(self, budgets: Sequence[int], position: int, handle: KvHandle) -> Lease | None:
        """A lease on a flat row that whoever calls fills; None if there is no room for it.

        handle: of the frame that it is a copy of, whose row need not exist.
        """
        with self._lock:
            flat = self.flats.take(budgets, position)
            return None if flat is None else self._flat_lease(handle, flat)

    def keep_copy(self, consumers: Sequence[str], copy: Lease) -> None:
        """The copy is what these consumers read of its frame, as long as the frame's row lives."""
        with self._lock:
            if self._is_written(copy.handle):
                for consumer in consumers:
                    own = self._flat_lease(copy.handle, copy.flat)
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
            return self._flat_lease(handle, copy.flat)

    def share(self, lease: Lease) -> Lease:
        """Another lease on what this one reads."""
        with self._lock:
            if lease.is_copy:
                return self._flat_lease(lease.handle, lease.flat)
            return super().acquire(lease.handle)

    def _flat_lease(self, handle: KvHandle, flat: int) -> Lease:
        lease = Lease(handle, self._give_flat_back, flat)
        self._readers.setdefault(flat, set()).add(lease)
        return lease

    def _give_flat_back(self, lease: Lease) -> None:
        with self._lock:
            readers = self._readers[lease.flat]
            readers.remove(lease)
            if not readers:
                del self._readers[lease.flat]
                self.flats.give(lease.flat)

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
            per_token, layers = self.flats.bytes_per_token, len(self.flats.layers)
            full = sum(handle.length for handle in gone) * layers
            return (full - self.flats.tokens_used) * per_token

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: a flat row is taken if somebody reads it."""
        super().check_integrity()
        self.flats.check_integrity()
        for flat in range(self.flats.rows):
            assert (flat in self._readers) != (flat in self.flats), f'flat row {flat} has no owner'
        for row in self._copies:
            assert row not in self._free_prefixes, f'prefix row {row} is free and has copies'
