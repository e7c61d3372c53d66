"""Who holds which row: the unified KV cache manager of OxyGen (section 3.2).

Its four operations on a generation state are `create`, `get`, `update` and `release`; batching
only writes row ids (`kv.views`). Every method may be called from any thread. The law that
`check_integrity` proves: free + held = rows, for prefixes and for tails, and every held row says
why it is held.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.compressed_rows import CompressedRows
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.rows import RowPool

LANGUAGE = 'language'  # the consumer that streams are


@dataclass(frozen=True)
class KvStats:
    """What the cache holds now, and what was done since the start."""

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
    evictions: int


class KvManager(CompressedRows):
    """Prefix rows and the streams that read them; each stream appends to a row of `tails`.

    reserved: prefix rows that language never holds, so that an action never waits for a row.
    grace: seconds that an unleased frame outlives its deadline.
    """

    def __init__(
        self,
        prefixes: Arena,
        tails: Arena,
        flats: CompressedArena,
        reserved: int = 2,
        grace: float = 1.0,
    ) -> None:
        super().__init__(prefixes, flats, grace)
        self.tails, self.reserved = tails, reserved
        self.language_rows_max = prefixes.rows - reserved
        self.streams_max = tails.rows
        self._free_tails = RowPool(tails.rows)
        self._streams: OrderedDict[int, DecodeStream] = OrderedDict()  # oldest first
        self._stepping: set[DecodeStream] = set()  # a step computes with what they hold
        self._step_over = threading.Condition(self._lock)
        self._ended: list[DecodeStream] = []
        self._next_stream = 1
        self._evictions = 0

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """All that the cache keeps."""
        return [m for arena in (self.prefixes, self.flats, self.tails) for m in arena.memory]

    def create(self, handle: KvHandle, query: Query) -> DecodeStream:
        """A new stream over the handle's frame; ends the oldest ones where a bound is reached.

        May wait for the tail of a step that is under way, so it must not be called within one.
        Raises Stale as `acquire` does, ValueError if the query does not fit a tail row.
        """
        self._check_fits(query)
        with self._lock, ExitStack() as undo:
            lease = undo.enter_context(self.acquire(handle, LANGUAGE))
            stream = self._join(lease, query)
            undo.pop_all()
            return stream

    def resume(self, lease: Lease, query: Query, tokens: Sequence[int]) -> DecodeStream:
        """A stream that has said `tokens` elsewhere and goes on here; the lease becomes its own.

        Whoever calls fills its tail, of length `stream.extent`, before the next step. Bounds and
        errors are those of `create`.
        """
        self._check_fits(query)
        with self._lock:
            stream = self._join(lease, query, tokens)
            self.tails.set_length(stream.tail, stream.extent)
            return stream

    def _check_fits(self, query: Query) -> None:
        needed = len(query.ids) + query.max_tokens
        if needed > self.tails.max_tokens:
            raise ValueError(
                f'a query of {len(query.ids)} tokens and an answer of {query.max_tokens} do not '
                f'fit a tail of {self.tails.max_tokens} tokens: shorten it, or raise '
                'engine.decode_tokens'
            )

    def _join(self, lease: Lease, query: Query, tokens: Sequence[int] = ()) -> DecodeStream:
        while True:  # whoever waits finds another budget, perhaps
            if min(self.streams_max, self.language_rows_max) < 1:
                raise ValueError('the budget lets no stream live: raise it with kv/set_limits')
            self._shrink_to(self.streams_max - 1, self.language_rows_max, joining=lease)
            if self._free_tails:
                break
            self._step_over.wait()
        stream = DecodeStream(
            self._next_stream, lease, self._free_tails.take(), query, list(tokens)
        )
        self._next_stream += 1
        self._streams[stream.id] = stream
        return stream

    def get(self, stream: int) -> DecodeStream:
        """The live stream of that number. Raises KeyError with a message for the user."""
        with self._lock:
            if stream not in self._streams:
                raise KeyError(f'no live stream {stream}')
            return self._streams[stream]

    def grow(self, streams: Sequence[DecodeStream], tokens: int) -> list[DecodeStream]:
        """A step begins: makes room for `tokens` more in each tail; returns who still lives.

        Until `update` or `end_step`, what the streams hold stays as it is, even if they end.
        """
        with self._lock:
            live = [stream for stream in streams if not stream.reason]
            self._stepping.update(live)
            rows = [stream.tail for stream in live]
            self.tails.set_length(rows, self.tails.lengths[0, rows] + tokens)
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
        self, streams: Sequence[DecodeStream], tokens: Sequence[int | None], eos: int
    ) -> None:
        """A step is over: a token more for each; ends who said `eos`, is full or has none."""
        with self._lock:
            for stream, token in zip(streams, tokens, strict=True):
                if token is None or token == eos:
                    self.release(stream, 'error' if token is None else 'eos')
                elif not stream.reason:
                    stream.tokens.append(token)
                    if len(stream.tokens) == stream.query.max_tokens:
                        self.release(stream, 'length')
            self.end_step()

    def end_step(self) -> None:
        """Nobody computes with the streams any more: frees what ended ones held."""
        with self._lock:
            ended = [stream for stream in self._stepping if stream.reason]
            self._stepping.clear()
            for stream in ended:
                self._free(stream)
            self._step_over.notify_all()

    def release(self, stream: DecodeStream, reason: str) -> None:
        """Ends a stream: its tail is free at once, or after the step that reads it.

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

    def _free(self, stream: DecodeStream) -> None:
        self.tails.set_length(stream.tail, 0)
        self._free_tails.give(stream.tail)
        stream.lease.release()

    def streams(self) -> list[DecodeStream]:
        """The live streams, oldest first."""
        with self._lock:
            return list(self._streams.values())

    def take_ended(self) -> list[DecodeStream]:
        """Streams that ended since the last call, each exactly once."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def set_limits(self, *, rows: int | None = None, streams: int | None = None) -> None:
        """Bounds what language may hold; ends the oldest streams above a bound.

        Raises ValueError for a bound out of range.
        """
        most_rows, most_streams = self.prefixes.rows - self.reserved, self.tails.rows
        if rows is not None and not 0 <= rows <= most_rows:
            raise ValueError(f'language may hold 0 to {most_rows} prefix rows, not {rows}')
        if streams is not None and not 0 <= streams <= most_streams:
            raise ValueError(f'there may be 0 to {most_streams} streams, not {streams}')
        with self._lock:
            self.language_rows_max = self.language_rows_max if rows is None else rows
            self.streams_max = self.streams_max if streams is None else streams
            self._shrink_to(self.streams_max, self.language_rows_max)

    def _by_row(self) -> dict[int, list[DecodeStream]]:
        """The streams of each prefix row that language holds.

        First the row that would be free first if the oldest streams ended one after another.
        """
        rows: dict[int, list[DecodeStream]] = {}
        for stream in self._streams.values():
            if not stream.lease.is_copy:
                rows[stream.row] = [*rows.pop(stream.row, ()), stream]
        return rows

    def _shrink_to(self, streams: int, rows: int, joining: Lease | None = None) -> None:
        """Ends the oldest streams until so many are left, on so many rows.

        The row of `joining` counts among them, and stays.
        """
        self._evict(self.streams()[: max(0, len(self._streams) - streams)])
        own = set() if joining is None or joining.is_copy else {joining.row}
        others = [readers for row, readers in self._by_row().items() if row not in own]
        self._evict(chain.from_iterable(others[: max(0, len(others) + len(own) - rows)]))

    def _make_room(self, rows: int) -> None:
        """Ends the oldest streams whose end frees so many rows; none if that is not possible."""
        freed = [readers for row, readers in self._by_row().items() if self._frees(row, readers)]
        if len(freed) >= rows:
            self._evict(chain.from_iterable(freed[:rows]))

    def _frees(self, row: int, readers: Sequence[DecodeStream]) -> bool:
        """Whether the row is free as soon as all streams that read it end."""
        alone = self._leases[row] == {stream.lease for stream in readers}
        return alone and not self._is_current(row) and self._stepping.isdisjoint(readers)

    def _evict(self, streams: Iterable[DecodeStream]) -> None:
        for stream in streams:
            self._evictions += 1
            self.release(stream, 'evicted')

    def stats(self) -> KvStats:
        with self._lock:
            return KvStats(
                rows=self.prefixes.rows,
                rows_free=len(self._free_prefixes),
                rows_reserved=self.reserved,
                leases=sum(map(len, self._leases.values())),
                streams=len(self._streams),
                streams_max=self.streams_max,
                language_rows_max=self.language_rows_max,
                bytes=self.prefixes.bytes + self.tails.bytes + self.flats.bytes,
                bytes_used=sum(a.bytes_used for a in (self.prefixes, self.tails, self.flats)),
                compressed=len(self._readers),
                bytes_saved=self.bytes_saved,
                prefills=self._prefills,
                evictions=self._evictions,
            )

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law."""
        with self._lock:
            super().check_integrity()
            holders = {*self._streams.values(), *self._stepping}
            tails = Counter(stream.tail for stream in holders)
            for row in range(self.tails.rows):
                assert tails[row] == (row not in self._free_tails), (
                    f'tail row {row}: {tails[row]} owners'
                )
            for stream in holders:
                lease = stream.lease
                held = self._readers[lease.flat] if lease.is_copy else self._leases[lease.row]
                assert lease in held, f'stream {stream.id} has no lease'
            for stream in holders - self._stepping:
                length = int(self.tails.lengths[0, stream.tail])
                assert length == stream.extent, f'stream {stream.id}: {length} tokens in its tail'
            rows = len(self._by_row())
            assert rows <= self.language_rows_max, f'language holds {rows} rows'
            assert len(self._streams) <= self.streams_max, f'{len(self._streams)} streams'
