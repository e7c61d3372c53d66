"""The graphs of one computation, by shape: a bounded table.

Knows keys and when each was used last. Does not know how to make what is missing: that costs a
capture, which nobody may pay unasked.
"""

from __future__ import annotations

from collections import OrderedDict

from embodied_kv.runtime.graph import Graph
from embodied_kv.runtime.shape_key import ShapeKey


class MissingVariant(LookupError):
    """No graph has this shape; the message says which have one."""


class Variants:
    """At most `capacity` graphs; the one unused for longest makes room for a new one.

    Raises ValueError for a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f'a table of variants holds at least 1, not {capacity}')
        self.capacity = capacity
        self._graphs: OrderedDict[ShapeKey, Graph] = OrderedDict()  # unused for longest first

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: ShapeKey) -> bool:
        """Asking is not using."""
        return key in self._graphs

    def keys(self) -> tuple[ShapeKey, ...]:
        """Unused for longest first."""
        return tuple(self._graphs)

    def get(self, key: ShapeKey) -> Graph:
        """The graph of exactly this shape, which counts as used. Raises MissingVariant."""
        if key not in self._graphs:
            known = '; '.join(map(str, self._graphs)) or 'none'
            raise MissingVariant(
                f'no graph was captured for {key}, or it made room for another '
                f'(capacity {self.capacity}); there are: {known}'
            )
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def add(self, key: ShapeKey, graph: Graph) -> ShapeKey | None:
        """Adds a graph, which counts as used; returns the key that made room for it, if one did.

        Raises ValueError if the shape has a graph.
        """
        if key in self._graphs:
            raise ValueError(f'{key} has a graph: {self._graphs[key].name!r}')
        evicted = None
        if len(self) == self.capacity:
            evicted, _ = self._graphs.popitem(last=False)
        self._graphs[key] = graph
        return evicted
