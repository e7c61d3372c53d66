"""Evicting a unit of the host cache frees all its layers; the unit can be loaded again."""

from itertools import count

import torch
from hypothesis import given
from hypothesis import strategies as st
from kept import is_whole, kv, put, unit

from embodied_kv.memory.cache import HostCache
from embodied_kv.memory.store import MemoryStore


def layer(size):
    return torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)


def test_an_offer_is_a_unit_and_costs_its_loads():
    cache = HostCache(100)
    for at in range(3):
        cache.put('a', at, layer(5), seconds=0.5)
    cache.put('b', 0, layer(7), seconds=0.25)
    assert [(offer.bytes, offer.cost) for offer in cache.evictable()] == [(30, 1.5), (14, 0.25)]
    first, _ = cache.evictable()
    assert first.evict() == 30 and cache.bytes_used == 14
    assert [cache.get('a', at) for at in range(3)] == [None] * 3
    assert first.evict() == 0 and cache.get('b', 0) is not None


def test_a_layer_in_use_stays_whole():
    cache = HostCache(100)
    cache.put('a', 0, layer(5))
    k, _ = cache.get('a', 0)
    (offer,) = cache.evictable()
    assert offer.evict() == 10 and k.numel() == 5


@given(
    st.integers(0, 100),
    st.lists(
        st.tuples(
            st.sampled_from('ppgde'), st.integers(0, 3), st.integers(0, 2), st.integers(0, 20)
        )
    ),
)
def test_after_any_operations_each_offer_frees_what_it_promises(capacity, operations):
    now = count()
    cache = HostCache(capacity, clock=lambda: next(now) // 4)
    for what, name, at, size in operations:
        if what == 'p':
            cache.put(str(name), at, layer(size), seconds=size / 8)
        elif what == 'g':
            cache.get(str(name), at)
        elif what == 'd':
            cache.drop(str(name))
        elif offers := cache.evictable():
            offer, before = offers[name % len(offers)], cache.bytes_used
            assert sum(o.bytes for o in offers) == before
            assert offer.evict() == offer.bytes == before - cache.bytes_used
        cache.check_integrity()
        units = {}  # least recently used first
        for (key, _), entry in cache._layers.items():
            units.setdefault(key, []).append(entry)
        offers, moment = cache.evictable(), (next(now) - 1) // 4
        assert [sorted(offer.evict.args[0])[0][0] for offer in offers] == [*units]
        assert [offer.size for offer in offers] == offers.sizes.tolist()
        assert [offer.cost for offer in offers] == offers.costs.tolist()
        newest = [max(entry.used_at for entry in own) for own in units.values()]
        assert offers.idles.tolist() == [moment - at for at in newest]


def test_the_store_loads_an_evicted_unit_again(tmp_path):
    with MemoryStore(tmp_path / 'memory', 'model') as store:
        put(store, cup='on table')
        store.store_kv(kv(unit(store, 'cup')))
        assert is_whole(store, unit(store, 'cup'))
        (offer,) = store.cache.evictable()
        assert offer.cost > 0  # a file was read
        assert offer.evict() == offer.bytes and len(store.cache) == 0
        assert is_whole(store, unit(store, 'cup'))
