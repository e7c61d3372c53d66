"""Who holds which row: the unified KV cache manager of OxyGen (section 3.2).

Its four operations on a generation state are `create`, `get`, `update` and `release`; batching
only writes row ids (`kv.views`). Every method may be called from any thread. The law that
`check_integrity` proves: free + held = rows, for prefixes and for decode KV, and every held row
says why it is held.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain, count

import numpy as np
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.compressed_rows import CompressedRows
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.rows import RowPool
from embodied_kv.kv.stats import KvStats

LANGUAGE = 'language'  # the consumer that decode streams are


class KvManager(CompressedRows):
    """Prefix rows and the decode streams on them; each appends to its own row of `decode_kv`.

    reserved: prefix rows that language never holds, so that an action never waits for a row.
    grace: seconds that an unleased frame outlives its deadline.
    """

    def __init__(
        self,
        prefixes: Arena,
        decode_kv: Arena,
        compressed: CompressedArena,
        reserved: int = 2,
        grace: float = 1.0,
    ) -> None:
        super().__init__(prefixes, compressed, grace)
        self.decode_kv, self.reserved = decode_kv, reserved
        self.language_rows_max = prefixes.rows - reserved
        self.streams_max = decode_kv.rows
        self._free_decode_rows = RowPool(decode_kv.rows)
        self._streams: OrderedDict[int, DecodeStream] = OrderedDict()  # oldest first
        self._stepping: set[DecodeStream] = set()  # a step computes with what they hold
        self._step_over = threading.Condition(self._lock)
        self._ended: list[DecodeStream] = []
        self._numbers = count(1)
        self._evictions = 0

    @property
    def memory(self) -> list[Tensor | np.ndarray]:
        """All that the cache keeps."""
        return [
            m for arena in (self.prefixes, self.compressed, self.decode_kv) for m in arena.memory
        ]

    def create(self, handle: KvHandle, query: Query) -> DecodeStream:
        """A new stream over the handle's frame; ends the oldest ones where a bound is reached.

        May wait for the decode row of a step that is under way, so it must not be called within
        one. Raises Stale as `acquire` does, ValueError if the query does not fit a row of decode
        KV.
        """
        self._check_fits(query)
        with self._lock, ExitStack() as undo:
            lease = undo.enter_context(self.acquire(handle, LANGUAGE))
            stream = self._join(lease, query)
            undo.pop_all()
            return stream

    def resume(self, lease: Lease, query: Query, tokens: Sequence[int]) -> DecodeStream:
        """A stream that generated `tokens` elsewhere and goes on here; the lease becomes its own.

        Whoever calls fills its decode row, of length `stream.extent`, before the next step. Bounds
        and errors are those of `create`.
        """
        self._check_fits(query)
        with self._lock:
            stream = self._join(lease, query, tokens)
            self.decode_kv.set_length(stream.decode_row, stream.extent)
            return stream

    def _check_fits(self, query: Query) -> None:
        needed = len(query.ids) + query.max_tokens
        if needed > self.decode_kv.max_tokens:
            raise ValueError(
                f'a query of {len(query.ids)} tokens and an answer of {query.max_tokens} do not '
                f'fit the {self.decode_kv.max_tokens} tokens of decode KV: shorten it, or raise '
                'engine.decode_tokens'
            )

    def _join(self, lease: Lease, query: Query, tokens: Sequence[int] = ()) -> DecodeStream:
        while True:  # the limits may change during a wait
            if min(self.streams_max, self.language_rows_max) < 1:
                raise ValueError('the limits allow no stream: raise them with kv/set_limits')
            self._shrink_to(self.streams_max - 1, self.language_rows_max, joining=lease)
            if self._free_decode_rows:
                break
            self._step_over.wait()
        number, row = next(self._numbers), self._free_decode_rows.take()
        self._streams[number] = DecodeStream(number, lease, row, query, list(tokens))
        return self._streams[number]

    def get(self, stream: int) -> DecodeStream:
        """The live stream of that number. Raises KeyError with a message for the user."""
        with self._lock:
            if stream not in self._streams:
                raise KeyError(f'no live stream {stream}')
            return self._streams[stream]

    def grow(self, streams: Sequence[DecodeStream], tokens: int) -> list[DecodeStream]:
        """A step begins: each stream gets room for `tokens` more; returns those that still live.

        Until `update` or `end_step`, what the streams hold stays as it is, even if they end.
        """
        with self._lock:
            live = [stream for stream in streams if not stream.reason]
            self._stepping.update(live)
            rows = [stream.decode_row for stream in live]
            self.decode_kv.set_length(rows, self.decode_kv.lengths[0, rows] + tokens)
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

    def _free(self, stream: DecodeStream) -> None:
        self.decode_kv.set_length(stream.decode_row, 0)
        self._free_decode_rows.give(stream.decode_row)
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
        most_rows, most_streams = self.prefixes.rows - self.reserved, self.decode_kv.rows
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
        nobody_else = self._leases[row] == {stream.lease for stream in readers}
        return nobody_else and not self._is_current(row) and self._stepping.isdisjoint(readers)

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
                bytes=self.prefixes.bytes + self.decode_kv.bytes + self.compressed.bytes,
                bytes_used=sum(
                    a.bytes_used for a in (self.prefixes, self.decode_kv, self.compressed)
                ),
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
            owners = Counter(stream.decode_row for stream in holders)
            for row in range(self.decode_kv.rows):
                taken = row not in self._free_decode_rows
                assert owners[row] == taken, f'decode row {row}: {owners[row]} owners'
            for stream in holders:
                assert self._is_out(stream.lease), f'stream {stream.id} has no lease'
            for stream in holders - self._stepping:
                length = int(self.decode_kv.lengths[0, stream.decode_row])
                assert length == stream.extent, f'stream {stream.id}: {length} tokens'
            rows = len(self._by_row())
            assert rows <= self.language_rows_max, f'language holds {rows} rows'
            assert len(self._streams) <= self.streams_max, f'{len(self._streams)} streams'
