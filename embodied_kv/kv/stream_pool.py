"""Decode streams, and the rows of decode KV that they append to.

Knows streams, steps and what a lease would free. Does not know frames, nor how many streams there
may be.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence, Set
from functools import partial
from itertools import count

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import Lease
from embodied_kv.kv.pool import Evictable
from embodied_kv.kv.rows import FreeRows


class StreamPool:
    """The live streams; each appends to its own row of `arena`.

    lock: of all pools of a manager. token_seconds: s of a decode step, as last measured; 0: not
    known. evictions: streams that were ended for want of room. bytes_reserved: of what the streams
    may come to take.
    """

    name = 'streams'

    def __init__(self, arena: Arena, lock: threading.RLock) -> None:
        self.arena, self.token_seconds, self.evictions = arena, 0.0, 0
        self._lock, self._step_over = lock, threading.Condition(lock)
        self._free_rows = FreeRows(arena.rows)
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
            stream = DecodeStream(number, lease, row, query, list(tokens))
            self.arena.set_length(row, stream.extent)
            self._streams[number] = stream
            self.bytes_reserved += self.bytes_for(query)
            return stream

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

    def by_row(self) -> dict[int, list[DecodeStream]]:
        """The live streams of each prefix row that they hold.

        First the row that would be free first if the oldest streams ended one after another.
        """
        with self._lock:
            rows: dict[int, list[DecodeStream]] = {}
            for stream in self._streams.values():
                if not stream.lease.is_copy:
                    row = stream.lease.row
                    rows[row] = [*rows.pop(row, ()), stream]
            return rows

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
            if len(stream.tokens) == stream.query.max_tokens:
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

    def is_stepping(self, streams: Iterable[DecodeStream]) -> bool:
        """Whether a step computes with any of them."""
        return not self._stepping.isdisjoint(streams)

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
            self._ended.append(stream)
            if stream not in self._stepping:
                self._free(stream)

    def evict(self, streams: Iterable[DecodeStream]) -> None:
        """Ends them for want of room."""
        with self._lock:
            for stream in streams:
                self.evictions += 1
                self.release(stream, 'evicted')

    def take_ended(self) -> list[DecodeStream]:
        """Streams that ended since the last call, each exactly once."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def _free(self, stream: DecodeStream) -> None:
        self.arena.set_length(stream.decode_row, 0)
        self.bytes_reserved -= self.bytes_for(stream.query)
        self._free_rows.give(stream.decode_row)
        stream.lease.release()

    def evictable(self) -> list[Evictable]:
        """Streams that no step computes with; a prefix or copy that one alone holds goes with it.

        cost: of its frame's prefill, and of a decode step for each of its tokens.
        """
        with self._lock:
            idle = [s for s in self._streams.values() if s not in self._stepping]
            leases = {s.lease for s in idle}
            return [self._offer(s, leases) for s in idle]

    def _offer(self, stream: DecodeStream, leases: Set[Lease]) -> Evictable:
        """leases: of all streams that could go; what these alone hold goes with the last one."""
        used, holds = self.arena.bytes_of(stream.decode_row), stream.lease.freed_with(leases)
        return Evictable(
            used + sum(held.bytes for held in holds if held.holders == 1),
            self._cost([stream]),
            partial(self._evict, stream),
            promised=self.bytes_for(stream.query) - used,
            holds=tuple(holds),
        )

    def freed_by(self, streams: Sequence[DecodeStream]) -> tuple[int, float]:
        """Bytes that the end of all of them frees, and s that it costs to make them again."""
        with self._lock:
            offers = [self._offer(s, {s.lease for s in streams}) for s in streams]
            rows = {(held.pool, held.row): held.bytes for o in offers for held in o.holds}
            size = sum(offer.own for offer in offers) + sum(rows.values())
            return size, self._cost(streams)

    def _cost(self, streams: Sequence[DecodeStream]) -> float:
        """One prefill makes a frame again for all of its streams."""
        prefills = sum(handle.prefill_ms / 1e3 for handle in {s.lease.handle for s in streams})
        return prefills + sum(len(s.tokens) for s in streams) * self.token_seconds

    def _evict(self, stream: DecodeStream) -> int:
        with self._lock:
            if stream.reason or stream in self._stepping:
                return 0
            freed = self._offer(stream, {stream.lease}).size
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
