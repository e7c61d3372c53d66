"""Which decode streams end where rows are lacking: those that are worth least to the KV budget.

Knows groups of streams and the KV budget's order. Does not know who needs the rows. It is called
with the lock of the pools held, and what it counts is true until that is given up.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.eviction import ascending
from embodied_kv.kv.handle import Lease
from embodied_kv.kv.stream_pool import Groups, StreamPool


class Preemption:
    """Ends streams of a pool in the order of a KV budget."""

    def __init__(self, streams: StreamPool, kv_budget: KvBudget) -> None:
        self._streams, self._kv_budget = streams, kv_budget

    @property
    def rows(self) -> int:
        """Prefix rows that would be free at once if streams ended."""
        return int(self._streams.by_row().frees.sum())

    def free(self, rows: int) -> None:
        """Ends all readers of so many rows, of those in `rows`."""
        if rows > 0:
            groups = self._streams.by_row()
            self._streams.evict(self.least(groups.only(groups.frees), rows))

    def shrink_to(self, streams: int, rows: int, joining: Lease | None = None) -> None:
        """Ends streams until so many are left, on so many rows.

        The row of `joining` counts among them, and stays.
        """
        if (surplus := len(self._streams) - streams) > 0:
            self._streams.evict(self.least(self._streams.each(), surplus))
        own = set() if joining is None or joining.is_copy else {joining.row}
        if (surplus := len(self._streams.rows_held() | own) - rows) > 0:
            groups = self._streams.by_row()
            others = groups.only(~np.isin(groups.keys, list(own)))
            self._streams.evict(self.least(others, surplus))

    def least(self, groups: Groups, count: int) -> list[DecodeStream]:
        """Return the streams of so many groups, those that are worth least."""
        worths = self._kv_budget.worths(self._streams, groups.sizes, groups.costs)
        keys = [int(groups.keys[i]) for i in islice(ascending(worths), count)]
        return [stream for key in keys for stream in groups.members(key)]
