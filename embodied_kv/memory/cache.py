"""Layers of KV in host memory, as many as fit.

Knows keys, tensors and a capacity in bytes. Does not know where a layer comes from.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from torch import Tensor

Layer = tuple[Tensor, Tensor]


class HostCache:
    """The k and v of (key, layer), each with memory of its own; least recently used ones go first.

    capacity: bytes, never exceeded; a layer that is larger by itself is not kept. Any thread may
    use it. hits, misses: of `get`, so far.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f'a cache of {capacity} bytes cannot be: 0 keeps nothing')
        self.capacity, self.bytes, self.hits, self.misses = capacity, 0, 0, 0
        self._layers: OrderedDict[tuple[str, int], Layer] = OrderedDict()
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
            return found

    def put(self, key: str, layer: int, kv: Layer) -> None:
        """In place of what was there."""
        with self._lock:
            self._remove((key, layer))
            size = _bytes(kv)
            if size > self.capacity:
                return
            while self.bytes + size > self.capacity:
                self._remove(next(iter(self._layers)))
            self._layers[key, layer] = kv
            self.bytes += size

    def drop(self, key: str, layers: int) -> None:
        """All layers of a key, which has so many."""
        with self._lock:
            for layer in range(layers):
                self._remove((key, layer))

    def _remove(self, entry: tuple[str, int]) -> None:
        if (kv := self._layers.pop(entry, None)) is not None:
            self.bytes -= _bytes(kv)


def _bytes(kv: Layer) -> int:
    return kv[0].nbytes + kv[1].nbytes
