"""The host cache never exceeds its capacity and keeps the most recently used layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.pool import Evictable
from embodied_kv.memory.cache import HostCache


def layer(size):
    return torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)


def test_least_recently_used_layers_are_evicted_first():
    cache = HostCache(60)
    for name in 'abc':
        cache.put(name, 0, layer(10))
    assert cache.get('a', 0) is not None
    cache.put('d', 0, layer(10))
    assert cache.get('b', 0) is None and all(cache.get(name, 0) for name in 'acd')
    assert (cache.hits, cache.misses) == (4, 1)


def test_a_layer_larger_than_the_capacity_is_not_kept():
    cache = HostCache(60)
    cache.put('a', 0, layer(10))
    cache.put('b', 0, layer(31))
    assert cache.get('a', 0) is not None and cache.get('b', 0) is None


class Pinned:
    """A pool that evicts nothing."""

    name, bytes_used, bytes, bytes_reserved = 'pinned', 50, 50, 50

    def evictable(self) -> list[Evictable]:
        return []


def test_a_layer_that_the_budget_refuses_costs_none_of_the_others():
    kv_budget = KvBudget(100, EvictionOrder())
    cache = HostCache(60, kv_budget)
    for pool in (cache, Pinned()):
        kv_budget.join(pool)
    cache.put('a', 0, layer(20), seconds=1.0)
    cache.put('b', 0, layer(25), seconds=1e-9)  # a and b do not fit together, and a is worth more
    assert cache.get('a', 0) is not None and cache.get('b', 0) is None
    cache.put('b', 0, layer(25), seconds=9.0)
    assert cache.get('a', 0) is None and cache.get('b', 0) is not None


def test_a_dropped_key_takes_all_its_layers():
    cache = HostCache(100)
    for at in range(3):
        cache.put('a', at, layer(5))
    cache.put('b', 0, layer(5))
    cache.drop('a')
    assert cache.bytes == 10 and len(cache) == 1


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match='capacity must be >= 0'):
        HostCache(-1)


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.sampled_from('pgd'), st.integers(0, 5), st.integers(0, 30))),
)
def test_after_any_operations_the_bytes_are_those_of_what_is_there(capacity, operations):
    cache, there = HostCache(capacity), {}
    for what, name, size in operations:
        if what == 'p':
            cache.put(str(name), 0, layer(size))
            there[name] = 2 * size
        elif what == 'g':
            cache.get(str(name), 0)
        else:
            cache.drop(str(name))
        kept = {name: size for name, size in there.items() if (str(name), 0) in cache._layers}
        assert cache.bytes == sum(kept.values()) <= capacity
