"""Layers of KV in host memory, as many as fit.

Knows keys, tensors and a bound in bytes. Does not know where a layer comes from.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from torch import Tensor

Layer = tuple[Tensor, Tensor]


class HostCache:
    """The k and v of (key, layer), each with memory of its own; least recently used ones go first.

    bound: bytes, never exceeded; a layer that is larger alone is not kept. Any thread may use it.
    hits, misses: of `get`, so far.
    """

    def __init__(self, bound: int) -> None:
        if bound < 0:
            raise ValueError(f'a cache of {bound} bytes cannot be: 0 keeps nothing')
        self.bound, self.bytes, self.hits, self.misses = bound, 0, 0, 0
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
            if size > self.bound:
                return
            while self.bytes + size > self.bound:
                self._remove(next(iter(self._layers)))
            self._layers[key, layer] = kv
            self.bytes += size

    def drop(self, key: str, layers: int) -> None:
        """All layers of a key, which has so many."""
        with self._lock:
            for layer in range(layers):
                self._remove((key, layer))

    def _remove(self, place: tuple[str, int]) -> None:
        if (kv := self._layers.pop(place, None)) is not None:
            self.bytes -= _bytes(kv)


def _bytes(kv: Layer) -> int:
    return kv[0].nbytes + kv[1].nbytes
