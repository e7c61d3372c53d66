"""The unified KV cache manager of OxyGen (section 3.2).

It composes three pools, `frames`, `copies` and `streams`, and implements the operations on several
of them. Of the paper's four operations on a generation state, `create` is here, `get`, `update`
and `release` are methods of `streams`; batching only writes row ids (`kv.views`). Every method may
be called from any thread. Invariant, checked by `check_integrity`: free + held = rows, for
prefixes, copies and decode KV, and every held row has a holder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.compressed_pool import CompressedPool
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.pool import Pool
from embodied_kv.kv.prefix_pool import PrefixPool
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.kv.stream_pool import StreamPool

LANGUAGE = 'language'  # the consumer name of decode streams


@dataclass(frozen=True)
class KvStats:
    """State of the cache, and counts since the start."""

    rows: int
    rows_free: int
    rows_reserved: int
    leases: int
    streams: int
    streams_max: int
    language_rows_max: int
    bytes: int
    bytes_used: int
    compressed: int
    bytes_saved: int
    prefills: int
    prefills_shared: int
    evictions: int
    allocation_failures: int
    scoring_failures: int


class KvManager:
    """Frames, their compressed copies, and the decode streams on them.

    reserved: number of prefix rows that language never holds, so that an action never waits for a
    row. grace: time (s) that a frame without a lease outlives its deadline. clock: s, steady.
    kv_budget: the budget that its pools share with others. floor: bytes of it for frames alone.
    keeps_rows: whether the newest frame of a robot keeps its row until the next one.
    """

    def __init__(
        self,
        prefixes: Arena,
        decode_kv: Arena,
        compressed: CompressedArena,
        reserved: int = 2,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        kv_budget: KvBudget | None = None,
        floor: int = 0,
        keeps_rows: bool = False,
    ) -> None:
        self.keeps_rows = keeps_rows
        self.prefixes, self.decode_kv, self.compressed = prefixes, decode_kv, compressed
        self.budget = kv_budget or KvBudget()
        self._lock = threading.RLock()
        self.copies = CompressedPool(compressed, prefixes, self._lock, self.budget)
        self.frames = PrefixPool(
            prefixes,
            self._lock,
            on_free=self.copies.drop_frame,
            with_copies=self.copies.kept_places,
            copies_of=self.copies.kept_by,
            grace=grace,
            clock=clock,
        )
        self.streams = StreamPool(decode_kv, self._lock, self.frames, self.copies, self.budget)
        self.pools: tuple[Pool, ...] = (self.frames, self.copies, self.streams)
        self.reserved = reserved
        for pool in self.pools:
            self.budget.join(pool, floor if pool is self.frames else 0)
        self.language_rows_max = prefixes.rows - reserved
        self.streams_max = decode_kv.rows
        self._streams_created = 0

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """Return all tensors and arrays of the cache."""
        arenas = self.prefixes, self.compressed, self.decode_kv
        pools = self.frames, self.copies, self.streams
        return [m for part in (*arenas, *pools) for m in part.memory]

    # ------------------------------------------------------------------ room for prefills

    def reserve(self, now: float) -> int:
        """Return a free row for a prefix, which the caller commits or abandons.

        now: s, steady clock. Raises OutOfRowsError if every row is held.
        """
        (row,) = self._reserve(1, now)
        return row

    @contextmanager
    def reserving(self, count: int, now: float, evicts: bool = True) -> Iterator[list[int]]:
        """Reserve `count` rows for prefixes; those not committed within the context are freed.

        now: s, steady clock. evicts: False to take only free rows and free bytes of the budget.
        Raises OutOfRowsError, and reserves none, if fewer can be freed.
        """
        with self._lock:
            rows = self._reserve(count, now, evicts)
            places = [self.frames.place(row) for row in rows]
        try:
            yield rows
        finally:
            with self._lock:
                for place in places:
                    if self.frames.is_writing(place):
                        self.frames.abandon(place[0])

    def _reserve(self, count: int, now: float, evicts: bool = True) -> list[int]:
        """Return free rows within the budget; streams are evicted for all of them, or none is."""
        with self._lock:
            if evicts and (not self.keeps_rows or count > self.frames.rows_free):
                self._retire_past(now)
            lacking = count - self.frames.rows_free
            if lacking > 0 and (not evicts or lacking > self.streams.rows_freeable):
                return self.frames.allocate(count)  # raises an error that names the holders
            size = count * self.prefixes.bytes_per_row
            try:
                with self.budget.claim(self.frames, size, evicts=evicts):
                    # The claim may have ended some streams already.
                    self.streams.free_rows(count - self.frames.rows_free)
                    return self.frames.allocate(count)
            except OverBudgetError as error:
                raise OutOfRowsError(str(error)) from error

    def _retire_past(self, now: float) -> None:
        """Retire the newest frames that are past their deadline and that nothing reads."""
        self.frames.expire(now)
        for handle in self.frames.reduced():
            if self.frames.is_past(handle, now) and not self.copies.is_read(handle):
                self.frames.retire(handle)

    # ------------------------------------------------------------------ rows and copies

    def acquire(self, handle: KvHandle, consumer: str = '') -> Lease:
        """Return a lease on a consumer's copy of the handle's frame, or else on the row.

        Raises StaleHandleError with the reason.
        """
        with self._lock:
            if self.frames.is_reduced(handle):
                copy = self.copies.acquire(handle, consumer)
                return copy or self.frames.acquire(handle)  # it raises the error
            lease = self.frames.acquire(handle)
            copy = self.copies.acquire(handle, consumer)
            if copy is None:
                return lease
            lease.release()
            return copy

    def reduce(self, handle: KvHandle) -> None:
        """Free the row of a robot's newest frame if nothing but language reads the frame.

        Its chunk was computed, so that only language reads it again: the compressed copy that all
        its streams share, until the next frame. Without such a copy, or while the row is leased,
        the row stays. It also stays if it may become a memory row.
        """
        with self._lock:
            is_copied = not self.keeps_rows and self.copies.assigned(handle, LANGUAGE)
            if is_copied and self.frames.reduce(handle):
                self.copies.keep_only(handle, LANGUAGE)

    @contextmanager
    def reading(self, leases: Sequence[Lease], consumer: str) -> Iterator[list[Lease]]:
        """Hold leases on what a consumer reads of these frames: copies, or else rows."""
        with ExitStack() as held:
            read: list[Lease] = []
            for lease in leases:
                copy = self.copies.acquire(lease.handle, consumer)
                read.append(lease if copy is None else held.enter_context(copy))
            yield read

    def keep_copy(self, consumers: Sequence[str], copy: Lease) -> None:
        """Let consumers read a copy of its frame while the frame's row lives."""
        with self._lock:
            if self.frames.holds(copy.handle):
                self.copies.assign(consumers, copy)
            else:
                copy.release()

    # ------------------------------------------------------------------ streams

    def create(self, handle: KvHandle, query: Query) -> DecodeStream:
        """Return a new stream over the handle's frame; evict the streams worth least at a bound.

        It may wait for the decode row of a step in progress, so it must not be called within one.
        Raises StaleHandleError as `acquire` does, ValueError if the query does not fit a row of
        decode KV, OverBudgetError if the budget has no room.
        """
        self.streams.check_fits(query)
        room = self.budget.claim(self.streams, self.streams.bytes_for(query), wait=True)
        with room, self._lock, ExitStack() as undo:
            lease = undo.enter_context(self.acquire(handle, LANGUAGE))
            stream = self._join(lease, query)
            undo.pop_all()
            self._streams_created += 1
            return stream

    def resume(self, lease: Lease, query: Query, tokens: Sequence[int]) -> DecodeStream:
        """Return a stream that generated `tokens` elsewhere; it takes the lease.

        The caller fills its decode row, of length `stream.extent`, before the next step. Bounds
        and errors are those of `create`, but it never waits for a step, because the caller may be
        within one: it raises ValueError instead, and also if `tokens` are not fewer than
        max_tokens.
        """
        self.streams.check_fits(query)
        if len(tokens) >= query.max_tokens:
            raise ValueError(
                f'a stream that continues must have fewer than {query.max_tokens} tokens, its '
                f'max_tokens (got {len(tokens)})'
            )
        with self._lock, self.budget.claim(self.streams, self.streams.bytes_for(query)):
            return self._join(lease, query, tokens, waits=False)

    def _join(
        self, lease: Lease, query: Query, tokens: Sequence[int] = (), waits: bool = True
    ) -> DecodeStream:
        while True:  # the limits may change while it waits
            if min(self.streams_max, self.language_rows_max) < 1:
                raise CodedError(
                    'the limits must allow a stream (got 0); raise them with kv/set_limits',
                    ErrorCode.NO_ROOM,
                )
            most = self.streams_max - 1, self.language_rows_max
            self.streams.shrink_to(*most, joining=lease, at_once=not waits)
            if self.streams.rows_free and self.streams.fits_in(*most, joining=lease):
                return self.streams.add(lease, query, tokens)
            if not waits:
                raise CodedError(
                    'a step computes with all rows of decode KV; try again', ErrorCode.NO_ROOM
                )
            self.streams.wait_for_step()

    def set_limits(self, *, rows: int | None = None, streams: int | None = None) -> None:
        """Set the bounds of language; the streams worth least above a bound are evicted.

        Raises ValueError for a bound out of range.
        """
        most_rows, most_streams = self.prefixes.rows - self.reserved, self.decode_kv.rows
        if rows is not None and not 0 <= rows <= most_rows:
            raise ValueError(f'prefix rows of language must be 0 to {most_rows} (got {rows})')
        if streams is not None and not 0 <= streams <= most_streams:
            raise ValueError(f'streams must be 0 to {most_streams} (got {streams})')
        with self._lock:
            self.language_rows_max = self.language_rows_max if rows is None else rows
            self.streams_max = self.streams_max if streams is None else streams
            self.streams.shrink_to(self.streams_max, self.language_rows_max)

    # ------------------------------------------------------------------ numbers and invariants

    def stats(self) -> KvStats:
        with self._lock:
            return KvStats(
                rows=self.prefixes.rows,
                rows_free=self.frames.rows_free,
                rows_reserved=self.reserved,
                leases=self.frames.leased,
                streams=len(self.streams),
                streams_max=self.streams_max,
                language_rows_max=self.language_rows_max,
                bytes=self.budget.bytes,
                bytes_used=self.budget.bytes_used,
                compressed=len(self.copies),
                bytes_saved=self._bytes_saved(),
                prefills=self.frames.prefills,
                prefills_shared=self._streams_created,
                evictions=self.streams.evictions,
                allocation_failures=self.copies.allocation_failures,
                scoring_failures=self.copies.scoring_failures,
            )

    def _bytes_saved(self) -> int:
        """Return the bytes of full rows that copies replace, less those of the copies.

        Negative if many streams have each a copy of one frame.
        """
        copied = self.copies.handles().values()
        full = sum(handle.length for handle in copied if not self.frames.holds(handle))
        per_token, layers = self.compressed.bytes_per_token, len(self.compressed.layers)
        return full * layers * per_token - self.copies.bytes_used

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant that is violated, of all pools in the budget."""
        with self._lock:
            for stream in self.streams.holders:
                pool = self.copies if stream.lease.is_copy else self.frames
                assert pool.is_leased_by(stream.lease), f'stream {stream.id} has no lease'
            copied = self.copies.handles()
            for place in self.copies.kept_places():
                kept = self.frames.holds(copied[place]) or self.frames.is_reduced(copied[place])
                assert kept, f'frame {place} is gone, with copies'
            rows = len(self.streams.rows_held())
            assert rows <= self.language_rows_max, f'language holds {rows} rows'
            assert len(self.streams) <= self.streams_max, f'{len(self.streams)} streams'
        self.budget.check_integrity()  # without the lock: other pools hold theirs in a claim
