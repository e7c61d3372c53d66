"""Who holds which row: the unified KV cache manager of OxyGen (section 3.2).

It composes three pools, `frames`, `copies` and `streams`, and does what concerns more than one of
them; the rest is theirs. Of the paper's four operations on a generation state, `create` is here,
`get`, `update` and `release` are those of `streams`; batching only writes row ids (`kv.views`).
Every method may be called from any thread. The law that `check_integrity` proves: free + held =
rows, for prefixes, copies and decode KV, and every held row says why it is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from torch import Tensor

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget, OverBudget
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.copy_pool import CopyPool
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import CopyLease, KvHandle, Lease, RowLease
from embodied_kv.kv.pool import Pool
from embodied_kv.kv.preemption import Preemption
from embodied_kv.kv.prefix_pool import PrefixPool
from embodied_kv.kv.rows import OutOfRows
from embodied_kv.kv.stats import KvStats
from embodied_kv.kv.stream_pool import StreamPool

LANGUAGE = 'language'  # the consumer that decode streams are


class KvManager:
    """Frames, compressed copies of them, and the decode streams on them.

    reserved: prefix rows that language never holds, so that an action never waits for a row.
    grace: seconds that an unleased frame outlives its deadline. clock: s, steady. kv_budget: the
    budget that its pools share with others; floor: bytes of it that are for frames alone.
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
    ) -> None:
        self.prefixes, self.decode_kv, self.compressed = prefixes, decode_kv, compressed
        self.budget = kv_budget or KvBudget()
        self._lock = threading.RLock()
        self.copies = CopyPool(compressed, prefixes, self._lock, self.budget)
        self.frames = PrefixPool(
            prefixes,
            self._lock,
            on_free=self.copies.forget,
            with_copies=self.copies.kept_places,
            beside=self.copies.kept_by,
            grace=grace,
            clock=clock,
        )
        self.streams = StreamPool(decode_kv, self._lock, self.frames, self.copies)
        self._preemption = Preemption(self.streams, self.budget)
        self.pools: tuple[Pool, ...] = (self.frames, self.copies, self.streams)
        self.reserved = reserved
        for pool in self.pools:
            self.budget.join(pool, floor if pool is self.frames else 0)
        self.language_rows_max = prefixes.rows - reserved
        self.streams_max = decode_kv.rows

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """All that the cache keeps."""
        arenas = self.prefixes, self.compressed, self.decode_kv
        pools = self.frames, self.copies, self.streams
        return [m for part in (*arenas, *pools) for m in part.memory]

    # ------------------------------------------------------------------ room for prefills

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
            places = [self.frames.place(row) for row in rows]
        try:
            yield rows
        finally:
            with self._lock:
                for place in places:
                    if self.frames.is_writing(place):
                        self.frames.abandon(place[0])

    def _reserve(self, count: int, now: float) -> list[int]:
        """Free rows, within the budget: streams give way for all of them, or none does."""
        with self._lock:
            self.frames.expire(now)
            lacking = count - self.frames.rows_free
            if lacking > 0 and lacking > self._preemption.rows:
                return self.frames.take(count)  # raises, with what holds the rows
            try:
                with self.budget.claim(self.frames, count * self.prefixes.bytes_per_row):
                    self._preemption.free(count - self.frames.rows_free)  # the claim ended some
                    return self.frames.take(count)
            except OverBudget as error:
                raise OutOfRows(str(error)) from error

    # ------------------------------------------------------------------ rows and copies

    def acquire(self, handle: KvHandle, consumer: str = '') -> Lease:
        """The right to read the handle's frame. Raises Stale with the reason.

        For a consumer whose copy there is, a lease on that alone; else on the row.
        """
        with self._lock:
            lease = self.frames.acquire(handle)
            copy = self.copies.acquire(handle, consumer)
            if copy is None:
                return lease
            lease.release()
            return copy

    @contextmanager
    def reading(self, leases: Sequence[RowLease], consumer: str) -> Iterator[list[Lease]]:
        """What a consumer reads of these frames, held for as long as the block.

        Its copy of a frame where there is one, else the row.
        """
        with ExitStack() as held:
            read: list[Lease] = []
            for lease in leases:
                copy = self.copies.acquire(lease.handle, consumer)
                read.append(lease if copy is None else held.enter_context(copy))
            yield read

    def keep_copy(self, consumers: Sequence[str], copy: CopyLease) -> None:
        """The copy is what these consumers read of its frame, as long as the frame's row lives."""
        with self._lock:
            if self.frames.holds(copy.handle):
                self.copies.keep(consumers, copy)
            else:
                copy.release()

    # ------------------------------------------------------------------ streams

    def create(self, handle: KvHandle, query: Query) -> DecodeStream:
        """A new stream over the handle's frame; ends those worth least where a bound is reached.

        May wait for the decode row of a step that is under way, so it must not be called within
        one. Raises Stale as `acquire` does, ValueError if the query does not fit a row of decode
        KV, OverBudget if the KV budget has no room for it.
        """
        self.streams.check_fits(query)
        room = self.budget.claim(self.streams, self.streams.bytes_for(query), wait=True)
        with room, self._lock, ExitStack() as undo:
            lease = undo.enter_context(self.acquire(handle, LANGUAGE))
            stream = self._join(lease, query)
            undo.pop_all()
            return stream

    def resume(self, lease: Lease, query: Query, tokens: Sequence[int]) -> DecodeStream:
        """A stream that generated `tokens` elsewhere and goes on here; the lease becomes its own.

        Whoever calls fills its decode row, of length `stream.extent`, before the next step. Bounds
        and errors are those of `create`; it waits for no step, for the caller may be within one,
        and raises ValueError instead; so it does for as many tokens as the answer may have.
        """
        self.streams.check_fits(query)
        if len(tokens) >= query.max_tokens:
            raise ValueError(
                f'a stream that goes on must have fewer than {query.max_tokens} tokens, its '
                f'max_tokens (got {len(tokens)})'
            )
        with self._lock, self.budget.claim(self.streams, self.streams.bytes_for(query)):
            return self._join(lease, query, tokens, waits=False)

    def _join(
        self, lease: Lease, query: Query, tokens: Sequence[int] = (), waits: bool = True
    ) -> DecodeStream:
        while True:  # the limits may change during a wait
            if min(self.streams_max, self.language_rows_max) < 1:
                raise CodedError(
                    'the limits allow no stream: raise them with kv/set_limits', ErrorCode.NO_ROOM
                )
            self._preemption.shrink_to(self.streams_max - 1, self.language_rows_max, joining=lease)
            if self.streams.rows_free:
                return self.streams.add(lease, query, tokens)
            if not waits:
                raise CodedError(
                    'a step computes with all rows of decode KV: try again', ErrorCode.NO_ROOM
                )
            self.streams.wait_for_step()

    def set_limits(self, *, rows: int | None = None, streams: int | None = None) -> None:
        """Bounds what language may hold; ends the streams worth least above a bound.

        Raises ValueError for a bound out of range.
        """
        most_rows, most_streams = self.prefixes.rows - self.reserved, self.decode_kv.rows
        if rows is not None and not 0 <= rows <= most_rows:
            raise ValueError(f'language may hold 0 to {most_rows} prefix rows, not {rows}')
        if streams is not None and not 0 <= streams <= most_streams:
            raise ValueError(f'there may be 0 to {most_streams} streams, not {streams}')
        with self._lock:
            self.language_rows_max = self.language_rows_max if rows is None else rows
            self.streams_max = self.streams_max if streams is None else streams
            self._preemption.shrink_to(self.streams_max, self.language_rows_max)

    # ------------------------------------------------------------------ numbers and laws

    def stats(self) -> KvStats:
        """As it is now."""
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
                evictions=self.streams.evictions,
                scoring_failures=self.copies.scoring_failures,
            )

    def _bytes_saved(self) -> int:
        """Full rows that would be held if nothing were compressed, less what the copies take.

        Negative where many streams keep copies of their own of one frame.
        """
        copied = self.copies.handles().values()
        full = sum(handle.length for handle in copied if not self.frames.holds(handle))
        per_token, layers = self.compressed.bytes_per_token, len(self.compressed.layers)
        return full * layers * per_token - self.copies.bytes_used

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law, of all pools that share the KV budget."""
        with self._lock:
            for stream in self.streams.holders:
                pool = self.copies if stream.lease.is_copy else self.frames
                assert pool.has_out(stream.lease), f'stream {stream.id} has no lease'
            for handle in self.copies.kept():
                assert self.frames.holds(handle), f'frame {handle.sequence} is gone, with copies'
            rows = len(self.streams.rows_held())
            assert rows <= self.language_rows_max, f'language holds {rows} rows'
            assert len(self.streams) <= self.streams_max, f'{len(self.streams)} streams'
        self.budget.check_integrity()  # other pools have locks of their own, held when they claim
