"""Which decode streams end where rows are lacking: those that are worth least to the plane.

Knows streams, the rows that they hold and the plane's order. Does not know who needs the rows. It
is called with the lock of the pools held, and what it counts is true until that is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import Lease
from embodied_kv.kv.plane import Plane
from embodied_kv.kv.stream_pool import StreamPool

Streams = Sequence[DecodeStream]


class Preemption:
    """Ends streams of a pool in the order of a plane; of what is worth the same, the oldest."""

    def __init__(self, streams: StreamPool, plane: Plane) -> None:
        self._streams, self._plane = streams, plane

    @property
    def rows(self) -> int:
        """Prefix rows that would be free at once if streams ended."""
        return len(self._freeing())

    def free(self, rows: int) -> None:
        """Ends all readers of so many rows, of those in `rows`."""
        if rows > 0:
            self._end(self._least(self._freeing(), rows))

    def shrink_to(self, streams: int, rows: int, joining: Lease | None = None) -> None:
        """Ends streams until so many are left, on so many rows.

        The row of `joining` counts among them, and stays.
        """
        each = [[stream] for stream in self._streams.live()]
        self._end(self._least(each, len(each) - streams))
        own = set() if joining is None or joining.is_copy else {joining.row}
        others = [group for row, group in self._streams.by_row().items() if row not in own]
        self._end(self._least(others, len(others) + len(own) - rows))

    def _freeing(self) -> list[Streams]:
        """By row, its readers, where the row is free as soon as all of them have ended."""
        return [
            readers
            for readers in self._streams.by_row().values()
            if readers[0].lease.freed_with({stream.lease for stream in readers})
            and not self._streams.is_stepping(readers)
        ]

    def _least(self, groups: Iterable[Streams], count: int) -> list[Streams]:
        return sorted(groups, key=self._worth)[:count] if count > 0 else []

    def _worth(self, group: Streams) -> float:
        return self._plane.worth(self._streams, *self._streams.freed_by(group))

    def _end(self, groups: Iterable[Streams]) -> None:
        self._streams.evict(chain.from_iterable(groups))
