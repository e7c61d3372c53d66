"""Pools without memory: their content is a table of things with a size and a cost."""

from dataclasses import dataclass
from functools import partial

from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.pool import Evictable

ORDER = EvictionOrder(('action',), 10.0, {'known': 1.0})


@dataclass(frozen=True, eq=False)
class Thing:
    size: int
    cost: float = 1.0
    idle: float = 0.0
    consumers: tuple = ()
    quick: bool = True


class TablePool:
    """A pool of things. things: what it holds now. gone: what was evicted, in order."""

    def __init__(self, name='table'):
        self.name, self.things, self.gone = name, [], []
        self.bytes = self.bytes_reserved = 0

    @property
    def bytes_used(self):
        return self.bytes

    def add(self, kv_budget, thing, **claim):
        with kv_budget.claim(self, thing.size, **claim):
            self.things.append(thing)
            self.bytes += thing.size
            self.bytes_reserved += thing.size

    def end(self, thing):
        if thing not in self.things:
            return 0
        self.things.remove(thing)
        self.bytes -= thing.size
        self.bytes_reserved -= thing.size
        return thing.size

    def evictable(self):
        return [
            Evictable(t.size, t.cost, partial(self._evict, t), t.idle, t.consumers, t.quick)
            for t in self.things
        ]

    def _evict(self, thing):
        freed = self.end(thing)
        self.gone += [thing] if freed else []
        return freed

    def check_integrity(self):
        held = sum(thing.size for thing in self.things)
        assert self.bytes == held, f'{self.name}: {self.bytes} bytes counted, {held} held'
