"""Layers of KV in host memory, as many as fit.

Knows keys, tensors and a capacity in bytes. Does not know where a layer comes from.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Lock

from torch import Tensor

from embodied_kv.kv.plane import OverBudget, Plane
from embodied_kv.kv.pool import Evictable

Layer = tuple[Tensor, Tensor]


class HostCache:
    """The k and v of (key, layer), each with memory of its own; least recently used ones go first.

    capacity: bytes, never exceeded; a layer that is larger by itself is not kept. Any thread may
    use it. plane: whose budget it shares, see `put`. clock: s, steady. hits, misses: of `get`, so
    far. Its bytes are those of what is there: as a pool it holds no more of the machine than is in
    use.
    """

    name = 'host cache'

    def __init__(
        self,
        capacity: int,
        plane: Plane | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 0:
            raise ValueError(f'a cache of {capacity} bytes cannot be: 0 keeps nothing')
        self.capacity, self.bytes, self.hits, self.misses = capacity, 0, 0, 0
        self._layers: OrderedDict[tuple[str, int], Layer] = OrderedDict()
        self._seconds: dict[tuple[str, int], float] = {}  # what the load of each took
        self._used_at: dict[tuple[str, int], float] = {}
        self._plane, self._clock = plane or Plane(), clock
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._layers)

    def get(self, key: str, layer: int) -> Layer | None:
        with self._lock:
            found = self._layers.get((key, layer))
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._layers.move_to_end((key, layer))
                self._used_at[key, layer] = self._clock()
            return found

    def put(self, key: str, layer: int, kv: Layer, seconds: float = 0.0) -> None:
        """In place of what was there. seconds: that it took to load; 0: not known.

        Not kept where the plane has room only in place of what is worth more; then all else stays.
        """
        size = _bytes(kv)
        with self._lock:
            self._remove((key, layer))
        if size > self.capacity:
            return
        with suppress(OverBudget), self._plane.claim(self, size, seconds), self._lock:
            self._remove((key, layer))  # another thread may have been first
            while self.bytes + size > self.capacity:
                self._remove(next(iter(self._layers)))
            self._layers[key, layer], self._seconds[key, layer] = kv, seconds
            self._used_at[key, layer] = self._clock()
            self.bytes += size

    def drop(self, key: str, layers: int) -> None:
        """All layers of a key, which has so many."""
        with self._lock:
            for layer in range(layers):
                self._remove((key, layer))

    def _remove(self, entry: tuple[str, int]) -> None:
        if (kv := self._layers.pop(entry, None)) is not None:
            self.bytes -= _bytes(kv)
            del self._seconds[entry], self._used_at[entry]

    # ------------------------------------------------------------------ as a pool

    @property
    def bytes_used(self) -> int:
        return self.bytes

    @property
    def bytes_reserved(self) -> int:
        return self.bytes

    def evictable(self) -> list[Evictable]:
        """Each key's layers together, least recently used keys first; whoever reads one keeps it.

        cost: of their loads.
        """
        with self._lock:
            entries: dict[str, list[tuple[str, int]]] = {}
            for entry in self._layers:
                entries.setdefault(entry[0], []).append(entry)
            return [
                Evictable(
                    sum(_bytes(self._layers[entry]) for entry in own),
                    sum(self._seconds[entry] for entry in own),
                    partial(self._evict, own),
                    self._clock() - max(self._used_at[entry] for entry in own),
                )
                for own in entries.values()
            ]

    def _evict(self, entries: Iterable[tuple[str, int]]) -> int:
        with self._lock:
            before = self.bytes
            for entry in entries:
                self._remove(entry)
            return before - self.bytes

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: what is there is counted, and fits."""
        with self._lock:
            there = sum(map(_bytes, self._layers.values()))
            assert there == self.bytes <= self.capacity, f'{there} bytes cached, not {self.bytes}'
            assert self._layers.keys() == self._seconds.keys(), 'loads without their layers'


def _bytes(kv: Layer) -> int:
    return kv[0].nbytes + kv[1].nbytes
