"""Decode streams, and the rows of decode KV that they append to.

Knows streams, steps and what a lease would free. Does not know frames, nor how many streams there
may be.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import Lease, LeaseOwner
from embodied_kv.kv.pool import GONE, Evictable, Offers
from embodied_kv.kv.rows import FreeRows

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """Streams that end together, as columns [n].

    keys: numbers of streams, or prefix rows. sizes: bytes that the end of a group frees. costs: s
    to make its streams again. frees: whether its prefix row is free at once. members: the streams
    of a key.
    """

    keys: Numbers
    sizes: Numbers
    costs: NDArray[np.float64]
    frees: NDArray[np.bool_]
    members: Callable[[int], list[DecodeStream]]

    def only(self, mask: NDArray[np.bool_]) -> Groups:
        """Return the groups of a mask."""
        columns = (column[mask] for column in (self.keys, self.sizes, self.costs, self.frees))
        return Groups(*columns, self.members)


class StreamPool:
    """The live streams; each appends to its own row of `arena`.

    lock: of all pools of a manager. rows, copies: whose leases the streams hold. token_seconds: s
    of a decode step, as last measured; 0: not known. evictions: streams that were ended for want
    of room. bytes_reserved: of what the streams may come to take.
    """

    name = 'streams'

    def __init__(
        self, arena: Arena, lock: threading.RLock, rows: LeaseOwner, copies: LeaseOwner
    ) -> None:
        self.arena, self.token_seconds, self.evictions = arena, 0.0, 0
        self._lock, self._step_over = lock, threading.Condition(lock)
        self._owners = rows, copies
        self._free_rows = FreeRows(arena.rows)
        # Of each decode row's live stream: its number (0: none), the bytes promised to it, its
        # tokens, s of its frame's prefill, and what it reads. Thousands are ranked by columns.
        self._ids, self._promised, self._said, self._read = (
            np.zeros(arena.rows, np.int64) for _ in range(4)
        )
        self._prefills, self._reads_copy = np.zeros(arena.rows), np.zeros(arena.rows, bool)
        self.bytes_reserved = 0
        self._streams: OrderedDict[int, DecodeStream] = OrderedDict()  # oldest first
        self._stepping: set[DecodeStream] = set()  # a step computes with what they hold
        self._ended: list[DecodeStream] = []
        self._numbers = count(1)

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used

    @property
    def memory(self) -> list[np.ndarray]:
        """The columns of the live streams, which `add` fills again."""
        own = self._ids, self._promised, self._said, self._read, self._prefills, self._reads_copy
        return [*own]

    @property
    def rows_free(self) -> int:
        return len(self._free_rows)

    def __len__(self) -> int:
        """Live streams."""
        return len(self._streams)

    def bytes_for(self, query: Query) -> int:
        """That a stream may come to take: its query and its longest answer."""
        tokens = len(query.ids) + query.max_tokens
        return tokens * len(self.arena.layers) * self.arena.bytes_per_token

    # ------------------------------------------------------------------ beginning

    def check_fits(self, query: Query) -> None:
        """Raises ValueError for a query that, with its answer, does not fit a row."""
        needed = len(query.ids) + query.max_tokens
        if needed > self.arena.max_tokens:
            raise ValueError(
                f'a query of {len(query.ids)} tokens and an answer of {query.max_tokens} do not '
                f'fit the {self.arena.max_tokens} tokens of decode KV: shorten it, or raise '
                'engine.decode_tokens'
            )

    def add(self, lease: Lease, query: Query, tokens: Sequence[int] = ()) -> DecodeStream:
        """A stream that said `tokens` elsewhere; the lease becomes its own, a row must be free.

        Whoever calls fills the row, of length `stream.extent`, before the next step.
        """
        with self._lock:
            number, row = next(self._numbers), self._free_rows.take()
            self.arena.clear(row)
            stream = DecodeStream(number, lease, row, query, list(tokens))
            self.arena.set_length(row, stream.extent)
            self._streams[number] = stream
            self._ids[row], self._said[row] = number, len(tokens)
            self._promised[row] = self.bytes_for(query)
            self._note_lease(stream)
            self.bytes_reserved += self.bytes_for(query)
            return stream

    def _note_lease(self, stream: DecodeStream) -> None:
        row, lease = stream.decode_row, stream.lease
        self._read[row], self._reads_copy[row] = lease.row, lease.is_copy
        self._prefills[row] = lease.handle.prefill_ms / 1e3

    def get(self, stream: int) -> DecodeStream:
        """The live stream of that number. Raises KeyError with a message for the user."""
        with self._lock:
            if stream not in self._streams:
                raise KeyError(f'no live stream {stream}')
            return self._streams[stream]

    def live(self) -> list[DecodeStream]:
        """The live streams, oldest first."""
        with self._lock:
            return list(self._streams.values())

    def rows_held(self) -> set[int]:
        """The prefix rows that live streams hold."""
        with self._lock:
            return set(self._read[(self._ids > 0) & ~self._reads_copy].tolist())

    # ------------------------------------------------------------------ a step

    def grow(self, streams: Sequence[DecodeStream], tokens: int) -> list[DecodeStream]:
        """A step begins: each stream gets room for `tokens` more; returns those that still live.

        Until `update` or `end_step`, what the streams hold stays as it is, even if they end.
        """
        with self._lock:
            live = [stream for stream in streams if not stream.reason]
            self._stepping.update(live)
            rows = [stream.decode_row for stream in live]
            self.arena.set_length(rows, self.arena.lengths[0, rows] + tokens)
            return live

    def hold_copy(self, stream: DecodeStream, copy: Lease) -> None:
        """From now on the stream reads the copy, and gives its prefix row back."""
        with self._lock:
            if stream.reason and stream not in self._stepping:
                copy.release()
                return
            stream.lease, row = copy, stream.lease
            self._note_lease(stream)
            row.release()

    def update(
        self, streams: Sequence[DecodeStream], said: Sequence[Sequence[int | None]], eos: int
    ) -> None:
        """A step is over, of one token or more for each; who said `eos`, is full or has none ends.

        said: the tokens of each stream; what comes after its end is nobody's.
        """
        with self._lock:
            for stream, tokens in zip(streams, said, strict=True):
                for token in tokens:
                    self._say(stream, token, eos)
            self.end_step()

    def _say(self, stream: DecodeStream, token: int | None, eos: int) -> None:
        if token is None or token == eos:
            self.release(stream, 'error' if token is None else 'eos')
        elif not stream.reason:
            stream.tokens.append(token)
            self._said[stream.decode_row] += 1
            if len(stream.tokens) >= stream.query.max_tokens:
                self.release(stream, 'length')

    def end_step(self) -> None:
        """Nobody computes with the streams any more: frees what ended ones held."""
        with self._lock:
            ended = [stream for stream in self._stepping if stream.reason]
            self._stepping.clear()
            for stream in ended:
                self._free(stream)
            self._step_over.notify_all()

    def wait_for_step(self) -> None:
        """Gives the lock up until the step that is under way is over."""
        self._step_over.wait()

    # ------------------------------------------------------------------ ending

    def release(self, stream: DecodeStream, reason: str) -> None:
        """Ends a stream: its decode row is free at once, or after the step that reads it.

        Its prefix is free with the last lease.
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
        """Ends them for want of room."""
        with self._lock:
            for stream in streams:
                self.evictions += 1
                self.release(stream, 'evicted')

    def pop_ended(self) -> list[DecodeStream]:
        """Streams that ended since the last call, each exactly once."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def _free(self, stream: DecodeStream) -> None:
        self.arena.set_length(stream.decode_row, 0)
        self.bytes_reserved -= self.bytes_for(stream.query)
        self._free_rows.give(stream.decode_row)
        stream.lease.release()

    # ------------------------------------------------------------------ what could go

    def evictable(self) -> Offers:
        """Streams that no step computes with; a prefix or copy that one alone holds goes with it.

        cost: of its frame's prefill, and of a decode step for each of its tokens.
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
        """Decode rows of the live streams but these, the oldest stream first."""
        ids = self._ids.copy()
        ids[[stream.decode_row for stream in busy]] = 0
        rows = np.flatnonzero(ids)
        return rows[np.argsort(ids[rows])]

    def _shared(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """What each of these streams reads: bytes that its end alone frees, and readers of it.

        Readers among these streams count.
        """
        alone, readers = np.zeros_like(rows), np.zeros_like(rows)
        for is_copy, owner in enumerate(self._owners):
            own = self._reads_copy[rows] == is_copy
            if own.any():
                (leases, sizes), read = owner.freeable(), self._read[rows[own]]
                alone[own] = np.where(leases[read] == 1, sizes[read], 0)
                readers[own] = np.bincount(read)[read]
        return alone, readers

    def _costs(self, rows: Numbers) -> NDArray[np.float64]:
        return self._prefills[rows] + self._said[rows] * self.token_seconds

    def _offer(self, number: int, readers: int) -> Evictable:
        """readers: streams that could go; what these alone hold goes with the last one."""
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
        """The live streams, each for itself, oldest first."""
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
        """The live streams of each prefix row that they hold.

        First the row that would be free first if the oldest streams ended one after another. A row
        that a step reads is not free at once.
        """
        with self._lock:
            rows = self._rows()
            rows = rows[~self._reads_copy[rows]]
            read = self._read[rows]
            leases, sizes = self._owners[0].freeable()

            by_read = np.argsort(read, kind='stable')
            in_order = read[by_read]

            def added(column: NDArray) -> NDArray:
                return np.bincount(read, column, minlength=len(leases))

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
                (prefills + added(self._said[rows]) * self.token_seconds)[held],
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

    # ------------------------------------------------------------------ the law

    @property
    def holders(self) -> set[DecodeStream]:
        """Who has a row: live streams, and those that a step computes with."""
        return {*self._streams.values(), *self._stepping}

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: every taken row is one stream's."""
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
                row: tuple(int(column[row]) for column in (self._ids, self._said, self._read))
                for row in np.flatnonzero(self._ids).tolist()
            }
            assert live == noted, f'streams by decode row are {live}, not {noted}'
