"""Cache of KV layers in host memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.pool import GONE, Evictable, Offers
from embodied_kv.kv.transfer import held_bytes

Layer = tuple[Tensor, Tensor]


@dataclass(eq=False, slots=True)
class _Entry:
    kv: Layer
    bytes: int
    seconds: float  # that its load took
    used_at: float  # s
    turn: int  # number of uses of the cache at its last use


class HostCache:
    """A thread-safe LRU cache of the k and v of (key, layer), and a pool of a budget.

    Args:
        capacity: Bytes, never exceeded; a layer that is larger is not kept.
        kv_budget: The budget that it shares, see `put`.
        clock: Seconds, monotonic.
    """

    name = 'host cache'

    def __init__(
        self,
        capacity: int,
        kv_budget: KvBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 0:
            raise ValueError(f'capacity must be >= 0 bytes (got {capacity}); 0 keeps nothing')
        self.capacity, self.bytes, self.hits, self.misses = capacity, 0, 0, 0
        self._layers: OrderedDict[tuple[str, int], _Entry] = OrderedDict()
        self._keys: dict[str, dict[int, _Entry]] = {}  # key -> its layers
        self._columns = _Columns()
        self._turn = 0
        self._kv_budget, self._clock = kv_budget or KvBudget(), clock
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._layers)

    def get(self, key: str, layer: int) -> Layer | None:
        with self._lock:
            found = self._layers.get((key, layer))
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._layers.move_to_end((key, layer))
            self._turn += 1
            found.used_at, found.turn = self._clock(), self._turn
            self._columns.note(key, self._keys[key].values())
            return found.kv

    def put(self, key: str, layer: int, kv: Layer, seconds: float = 0.0) -> None:
        """Store a layer that took `seconds` to load (0: unknown), in place of an older one.

        If the budget has room only in place of data of higher value, the layer is not stored.
        """
        size = _bytes(kv)
        with self._lock:
            self._remove((key, layer))
        if size > self.capacity:
            return
        with suppress(OverBudgetError), self._kv_budget.claim(self, size, seconds), self._lock:
            self._remove((key, layer))  # another thread may have been first
            while self.bytes + size > self.capacity:
                self._remove(next(iter(self._layers)))
            self._turn += 1
            entry = _Entry(kv, size, seconds, self._clock(), self._turn)
            self._layers[key, layer] = self._keys.setdefault(key, {})[layer] = entry
            self._columns.note(key, self._keys[key].values())
            self.bytes += size

    def drop(self, key: str) -> None:
        """Remove all layers of a key."""
        with self._lock:
            for layer in [*self._keys.get(key, ())]:
                self._remove((key, layer))

    def _remove(self, entry: tuple[str, int]) -> None:
        if (found := self._layers.pop(entry, None)) is not None:
            self.bytes -= found.bytes
            key, layer = entry
            del self._keys[key][layer]
            self._columns.note(key, self._keys[key].values())
            if not self._keys[key]:
                del self._keys[key]

    @property
    def bytes_used(self) -> int:
        return self.bytes

    bytes_reserved = bytes_used

    def evictable(self) -> Offers:
        """Offer the layers of each key together, at the cost of their loads, in LRU order.

        A layer that is being read stays valid for its reader.
        """
        with self._lock:
            keys, sizes, costs, used_at = self._columns.all()
            idles = self._clock() - used_at
            return Offers(sizes, costs, idles, lambda i: self._offer(keys[i]))

    def _offer(self, key: str) -> Evictable:
        with self._lock:
            if (own := self._keys.get(key)) is None:
                return GONE
            return Evictable(
                sum(entry.bytes for entry in own.values()),
                sum(entry.seconds for entry in own.values()),
                partial(self._evict, [(key, layer) for layer in own]),
                self._clock() - max(entry.used_at for entry in own.values()),
            )

    def _evict(self, entries: Iterable[tuple[str, int]]) -> int:
        with self._lock:
            before = self.bytes
            for entry in entries:
                self._remove(entry)
            return before - self.bytes

    def check_integrity(self) -> None:
        """Raise AssertionError unless all entries are counted and fit."""
        with self._lock:
            there = sum(_bytes(entry.kv) for entry in self._layers.values())
            assert there == self.bytes <= self.capacity, (
                f'{there} bytes are cached, {self.bytes} counted'
            )
            by_key = {(key, n): e for key, own in self._keys.items() for n, e in own.items()}
            assert by_key == self._layers, 'keys must have their layers'
            keys, sizes, *_ = self._columns.all()
            assert set(keys) == self._keys.keys() and sizes.sum() == there, (
                'columns must equal the entries'
            )


def _bytes(kv: Layer) -> int:
    """Return the size of both, which share an allocation (see `files.KvFiles.read`)."""
    return held_bytes(kv[0].nbytes + kv[1].nbytes)


class _Columns:
    """Bytes, seconds and last use of each key as arrays, so that thousands are ranked quickly."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._keys = np.empty(0, object)
        self._facts = np.empty((4, 0))  # bytes, seconds, s of the newest use, turn of the oldest

    def note(self, key: str, entries: Collection[_Entry]) -> None:
        """Record the layers of a key; none removes the key."""
        if not entries:
            slot = self._slots.pop(key)
            self._keys[slot], self._facts[:, slot] = None, 0
            self._free.append(slot)
            return
        if key not in self._slots:
            if not self._free:
                self._grow()
            self._slots[key] = self._free.pop()
            self._keys[self._slots[key]] = key
        self._facts[:, self._slots[key]] = (
            sum(entry.bytes for entry in entries),
            sum(entry.seconds for entry in entries),
            max(entry.used_at for entry in entries),
            min(entry.turn for entry in entries),
        )

    def _grow(self) -> None:
        old = len(self._keys)
        more = max(16, old)
        self._keys = np.concatenate([self._keys, np.empty(more, object)])
        self._facts = np.concatenate([self._facts, np.zeros((4, more))], axis=1)
        self._free += range(old, old + more)

    def all(self) -> tuple[NDArray[np.object_], NDArray, NDArray, NDArray]:
        """Return keys, bytes, seconds and newest uses in LRU order."""
        used = np.flatnonzero(self._facts[3])
        used = used[np.argsort(self._facts[3, used])]
        sizes, costs, used_at = self._facts[:3, used]
        return self._keys[used], sizes.astype(np.int64), costs, used_at
