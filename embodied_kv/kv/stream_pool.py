"""The live decode streams, and their rows of decode KV."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.eviction import ascending
from embodied_kv.kv.handle import Lease, LeasedPool
from embodied_kv.kv.pool import GONE, ArenaPool, Evictable, Offers
from embodied_kv.kv.rows import FreeRows

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """Streams that are evicted together, as columns [n].

    keys: stream numbers, or prefix rows. sizes: bytes that the eviction of a group frees. costs:
    time (s) to compute its streams again. frees: whether its prefix row is then free at once.
    members: returns the streams of a key.
    """

    keys: Numbers
    sizes: Numbers
    costs: NDArray[np.float64]
    frees: NDArray[np.bool_]
    members: Callable[[int], list[DecodeStream]]

    def only(self, mask: NDArray[np.bool_]) -> Groups:
        """Return the groups that a mask selects."""
        return Groups(
            self.keys[mask], self.sizes[mask], self.costs[mask], self.frees[mask], self.members
        )


class StreamPool(ArenaPool):
    """The live streams, each with a row of `arena`.

    frames, copies: the pools that the streams hold leases of. token_seconds: last measured time
    (s) of a decode step; 0: unknown. evictions: number of evicted streams. bytes_reserved: bytes
    that the streams may come to use.
    """

    arena: Arena
    name = 'streams'

    def __init__(
        self,
        arena: Arena,
        lock: threading.RLock,
        frames: LeasedPool,
        copies: LeasedPool,
        kv_budget: KvBudget,
    ) -> None:
        super().__init__(arena, lock)
        self.token_seconds, self.evictions, self._step_over = 0.0, 0, threading.Condition(lock)
        self._read_pools, self._kv_budget = (frames, copies), kv_budget
        self._free_rows = FreeRows(arena.rows)
        # By decode row: number of the live stream (0: none), bytes promised, tokens, prefill time
        # of its frame (s), and what it reads. Thousands of streams are ranked by these columns.
        self._ids, self._promised, self._counts, self._read = (
            np.zeros(arena.rows, np.int64) for _ in range(4)
        )
        self._prefills, self._reads_copy = np.zeros(arena.rows), np.zeros(arena.rows, bool)
        self.bytes_reserved = 0
        self._streams: OrderedDict[int, DecodeStream] = OrderedDict()  # oldest first
        self._stepping: set[DecodeStream] = set()  # in the step in progress
        self._ended: list[DecodeStream] = []
        self._numbers = count(1)

    @property
    def memory(self) -> list[np.ndarray]:
        """Return the columns of the live streams."""
        own = self._ids, self._promised, self._counts, self._read, self._prefills, self._reads_copy
        return [*own]

    @property
    def rows_free(self) -> int:
        return len(self._free_rows)

    def __len__(self) -> int:
        """Return the number of live streams."""
        return len(self._streams)

    def bytes_for(self, query: Query) -> int:
        """Return the bytes that a stream may come to use, for its query and its longest answer."""
        tokens = len(query.ids) + query.max_tokens
        return tokens * len(self.arena.layers) * self.arena.bytes_per_token

    # ------------------------------------------------------------------ beginning

    def check_fits(self, query: Query) -> None:
        """Raise ValueError if a query and its answer do not fit a row."""
        needed = len(query.ids) + query.max_tokens
        if needed > self.arena.max_tokens:
            raise ValueError(
                f'a query of {len(query.ids)} tokens and an answer of {query.max_tokens} do not '
                f'fit the {self.arena.max_tokens} tokens of decode KV: shorten it, or raise '
                'engine.decode_tokens'
            )

    def add(self, lease: Lease, query: Query, tokens: Sequence[int] = ()) -> DecodeStream:
        """Return a new stream that generated `tokens` elsewhere; it takes lease and row.

        The caller fills the row, of length `stream.extent`, before the next step.
        """
        with self._lock:
            number, row = next(self._numbers), self._free_rows.allocate()
            self.arena.clear(row)
            stream = DecodeStream(number, lease, row, query, list(tokens))
            self.arena.set_length(row, stream.extent)
            self._streams[number] = stream
            self._ids[row], self._counts[row] = number, len(tokens)
            self._promised[row] = self.bytes_for(query)
            self._note_lease(stream)
            self.bytes_reserved += self.bytes_for(query)
            return stream

    def _note_lease(self, stream: DecodeStream) -> None:
        row, lease = stream.decode_row, stream.lease
        self._read[row], self._reads_copy[row] = lease.row, lease.is_copy
        self._prefills[row] = lease.handle.prefill_ms / 1e3

    def get(self, stream: int) -> DecodeStream:
        """Return a live stream by number. Raises KeyError with a message for the user."""
        with self._lock:
            if stream not in self._streams:
                raise KeyError(f'no live stream {stream}')
            return self._streams[stream]

    def live(self) -> list[DecodeStream]:
        """Return the live streams, oldest first."""
        with self._lock:
            return list(self._streams.values())

    def rows_held(self) -> set[int]:
        """Return the prefix rows that live streams hold."""
        with self._lock:
            return set(self._read[(self._ids > 0) & ~self._reads_copy].tolist())

    # ------------------------------------------------------------------ a step

    def grow(self, streams: Sequence[DecodeStream], tokens: int) -> list[DecodeStream]:
        """Begin a step: make room for `tokens` more in each stream, and return the live ones.

        The rows of the streams are kept until `update` or `end_step`, even if the streams end.
        """
        with self._lock:
            live = [stream for stream in streams if not stream.reason]
            self._stepping.update(live)
            rows = [stream.decode_row for stream in live]
            self.arena.set_length(rows, self.arena.lengths[0, rows] + tokens)
            return live

    def hold_copy(self, stream: DecodeStream, copy: Lease) -> None:
        """Let a stream read a copy from now on, and release its prefix row."""
        with self._lock:
            if stream.reason and stream not in self._stepping:
                copy.release()
                return
            stream.lease, row = copy, stream.lease
            self._note_lease(stream)
            row.release()

    def update(
        self, streams: Sequence[DecodeStream], tokens: Sequence[Sequence[int | None]], eos: int
    ) -> None:
        """End a step with the new tokens of each stream.

        A stream ends at `eos`, at None (no token could be chosen) and at its last permitted token;
        further tokens of it are dropped.
        """
        with self._lock:
            for stream, own in zip(streams, tokens, strict=True):
                for token in own:
                    self._append(stream, token, eos)
            self.end_step()

    def _append(self, stream: DecodeStream, token: int | None, eos: int) -> None:
        if token is None or token == eos:
            self.release(stream, 'error' if token is None else 'eos')
        elif not stream.reason:
            stream.tokens.append(token)
            self._counts[stream.decode_row] += 1
            if len(stream.tokens) >= stream.query.max_tokens:
                self.release(stream, 'length')

    def end_step(self) -> None:
        """End a step, and free the rows of the streams that ended during it."""
        with self._lock:
            ended = [stream for stream in self._stepping if stream.reason]
            self._stepping.clear()
            for stream in ended:
                self._free(stream)
            self._step_over.notify_all()

    def wait_for_step(self) -> None:
        """Release the lock until the step in progress has ended."""
        self._step_over.wait()

    # ------------------------------------------------------------------ ending

    def release(self, stream: DecodeStream, reason: str) -> None:
        """End a stream; its decode row is free at once, or after the step that reads it.

        Its prefix is freed with the last lease.
        """
        with self._lock:
            if stream.reason:
                return
            stream.reason = reason
            del self._streams[stream.id]
            self._ids[stream.decode_row] = 0
            self._ended.append(stream)
            if stream not in self._stepping:
                self._free(stream)

    def evict(self, streams: Iterable[DecodeStream]) -> None:
        """End streams because room is needed."""
        with self._lock:
            for stream in streams:
                self.evictions += 1
                self.release(stream, 'evicted')

    def free_rows(self, count: int) -> None:
        """End all streams of `count` prefix rows that are then free at once."""
        if count > 0:
            groups = self.by_row()
            self.evict(self.least_valuable(groups.only(groups.frees), count))

    @property
    def rows_freeable(self) -> int:
        """Return the number of prefix rows that are free at once if their streams end."""
        return int(self.by_row().frees.sum())

    def shrink_to(
        self, streams: int, rows: int, joining: Lease | None = None, at_once: bool = False
    ) -> None:
        """End streams until at most `streams` are left, on at most `rows` prefix rows.

        The row of `joining` counts as well, and stays. at_once: end only streams outside the step
        in progress, whose decode rows are then free; more may be left.
        """
        busy = self._stepping if at_once else ()
        if (surplus := len(self) - streams) > 0:
            each = self.each()
            idle = each.only(~np.isin(each.keys, [stream.id for stream in busy]))
            self.evict(self.least_valuable(idle, surplus))
        own = set() if joining is None or joining.is_copy else {joining.row}
        if (surplus := len(self.rows_held() | own) - rows) > 0:
            groups = self.by_row()
            kept = own | {s.lease.row for s in busy if not s.lease.is_copy}
            others = groups.only(~np.isin(groups.keys, list(kept)))
            self.evict(self.least_valuable(others, surplus))

    def fits_in(self, streams: int, rows: int, joining: Lease | None = None) -> bool:
        """Return whether `shrink_to` with these arguments has nothing to end."""
        own = set() if joining is None or joining.is_copy else {joining.row}
        return len(self) <= streams and len(self.rows_held() | own) <= rows

    def least_valuable(self, groups: Groups, count: int) -> list[DecodeStream]:
        """Return the streams of the `count` groups with the lowest eviction worth."""
        worths = self._kv_budget.worths(self, groups.sizes, groups.costs)
        keys = [int(groups.keys[i]) for i in islice(ascending(worths), count)]
        return [stream for key in keys for stream in groups.members(key)]

    def pop_ended(self) -> list[DecodeStream]:
        """Return the streams that ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def _free(self, stream: DecodeStream) -> None:
        self.arena.set_length(stream.decode_row, 0)
        self.bytes_reserved -= self.bytes_for(stream.query)
        self._free_rows.free(stream.decode_row)
        stream.lease.release()

    # ------------------------------------------------------------------ eviction

    def evictable(self) -> Offers:
        """Return offers of the streams outside of a step, each with the row that only it reads.

        cost: of the prefill of its frame, and of a decode step for each of its tokens.
        """
        with self._lock:
            rows = self._rows(self._stepping)
            alone, readers = self._shared(rows)
            numbers = self._ids[rows]
            return Offers(
                self._promised[rows] + alone,
                self._costs(rows),
                np.zeros(len(rows)),
                lambda i: self._offer(int(numbers[i]), int(readers[i])),
            )

    def _rows(self, busy: Iterable[DecodeStream] = ()) -> Numbers:
        """Return the decode rows of the live streams except `busy`, oldest stream first."""
        ids = self._ids.copy()
        ids[[stream.decode_row for stream in busy]] = 0
        rows = np.flatnonzero(ids)
        return rows[np.argsort(ids[rows])]

    def _shared(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return by stream the bytes of its read row that its end alone frees, and the readers.

        Only these streams count as readers.
        """
        alone, readers = np.zeros_like(rows), np.zeros_like(rows)
        for is_copy, pool in enumerate(self._read_pools):
            own = self._reads_copy[rows] == is_copy
            if own.any():
                (leases, sizes), read = pool.freeable(), self._read[rows[own]]
                alone[own] = np.where(leases[read] == 1, sizes[read], 0)
                readers[own] = np.bincount(read)[read]
        return alone, readers

    def _costs(self, rows: Numbers | int) -> NDArray[np.float64]:
        return self._prefills[rows] + self._counts[rows] * self.token_seconds

    def _offer(self, number: int, readers: int) -> Evictable:
        """Return the offer of a stream; readers: streams that could be evicted with it."""
        with self._lock:
            stream = self._streams.get(number)
            if stream is None:
                return GONE
            promised, used = self.bytes_for(stream.query), self.arena.bytes_of(stream.decode_row)
            holds = tuple(stream.lease.freed_with(readers))
            return Evictable(
                used + sum(held.bytes for held in holds if held.holders == 1),
                float(self._costs(stream.decode_row)),
                partial(self._evict, stream),
                promised=promised - used,
                holds=holds,
            )

    def each(self) -> Groups:
        """Return the live streams as groups of one, oldest first."""
        with self._lock:
            rows = self._rows()
            alone, _ = self._shared(rows)
            return Groups(
                self._ids[rows],
                self._promised[rows] + alone,
                self._costs(rows),
                alone > 0,
                lambda number: [self._streams[number]],
            )

    def by_row(self) -> Groups:
        """Return the live streams in groups by the prefix row that they hold.

        The first group is the row that is free first if the oldest streams end first. A row that a
        step reads is not free at once.
        """
        with self._lock:
            rows = self._rows()
            rows = rows[~self._reads_copy[rows]]
            read = self._read[rows]
            leases, sizes = self._read_pools[0].freeable()

            by_read = np.argsort(read, kind='stable')
            in_order = read[by_read]
            added = partial(np.bincount, read, minlength=len(leases))  # sums by prefix row

            def members(row: int) -> list[DecodeStream]:
                own = slice(*np.searchsorted(in_order, (row, row + 1)))
                return [self._streams[n] for n in self._ids[rows[by_read[own]]].tolist()]

            newest, prefills = np.zeros_like(leases), np.zeros(len(leases))
            newest[read], prefills[read] = self._ids[rows], self._prefills[rows]
            held = np.flatnonzero(newest)
            held = held[np.argsort(newest[held])]
            freed = np.where(added(np.ones(len(rows))) == leases, sizes, 0)[held]
            busy = np.zeros(len(leases), bool)
            busy[[s.lease.row for s in self._stepping if not s.lease.is_copy]] = True
            return Groups(
                held,
                added(self._promised[rows]).astype(np.int64)[held] + freed,
                (prefills + added(self._counts[rows]) * self.token_seconds)[held],
                (freed > 0) & ~busy[held],
                members,
            )

    def _evict(self, stream: DecodeStream) -> int:
        with self._lock:
            if stream.reason or stream in self._stepping:
                return 0
            freed = self._offer(stream.id, 1).size
            self.evict([stream])
            return freed

    # ------------------------------------------------------------------ invariants

    @property
    def holders(self) -> set[DecodeStream]:
        """Return the streams that have a row: live ones, and those in a step."""
        return {*self._streams.values(), *self._stepping}

    def check_integrity(self) -> None:
        """Raise AssertionError unless each allocated row has one stream and the columns match."""
        with self._lock:
            owners = Counter(stream.decode_row for stream in self.holders)
            for row in range(self.arena.rows):
                taken = row not in self._free_rows
                assert owners[row] == taken, f'decode row {row}: {owners[row]} owners'
            reserved = sum(self.bytes_for(stream.query) for stream in self.holders)
            assert self.bytes_used <= self.bytes_reserved == reserved, (
                f'{self.bytes_used} bytes of decode KV, {self.bytes_reserved} reserved, not '
                f'{reserved}'
            )
            for stream in self.holders - self._stepping:
                length = int(self.arena.lengths[0, stream.decode_row])
                assert length == stream.extent, f'stream {stream.id}: {length} tokens'
            live = {s.decode_row: (s.id, len(s.tokens), s.lease.row) for s in self.live()}
            noted = {
                row: tuple(int(column[row]) for column in (self._ids, self._counts, self._read))
                for row in np.flatnonzero(self._ids).tolist()
            }
            assert live == noted, f'streams by decode row are {live}, not {noted}'
