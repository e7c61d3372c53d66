"""KV files never exceed the disk limit; the least recently used units are removed first."""

import os

from kept import is_whole, kv, put, unit

from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.segment import Unit
from embodied_kv.memory.store import MemoryStore

TEXT = 'on the table'


def filled(folder, *ids):
    """Return a store with one file of about 2,400 bytes for each unit."""
    store = MemoryStore(folder, 'model')
    put(store, **{id: TEXT for id in ids})
    for id in ids:
        store.store_kv(kv(unit(store, id)))
    return store


def kept(store):
    return {segment.id for segment in store.list() if Unit((segment,)).key in store}


def taken(store):
    return [path.stat().st_size for path in store.folder.glob('*.safetensors')]


def test_least_recently_used_units_are_evicted(tmp_path):
    with filled(tmp_path, 'a', 'b', 'c', 'd') as store:
        size = max(taken(store))
        store.load_memory(unit(store, 'a').key, 2)
        store.limit(3 * size + 300)
        assert kept(store) == {'a', 'c', 'd'} and len(taken(store)) == 3
        store.use(unit(store, 'c').key)
        put(store, e=TEXT)
        assert store.store_kv(kv(unit(store, 'e'))) == (True,)
        assert kept(store) == {'a', 'c', 'e'} and sum(taken(store)) <= 3 * size + 300
        assert all(is_whole(store, unit(store, id)) for id in ('a', 'c', 'e'))
        assert len(store.list()) == 5, 'text is never removed'


def test_units_of_one_call_do_not_replace_each_other(tmp_path):
    with filled(tmp_path, 'a') as store:
        size = max(taken(store)) + 300
        store.limit(2 * size)
        put(store, b=TEXT, c=TEXT, d=TEXT)
        new = [kv(unit(store, id)) for id in ('b', 'c', 'd')]
        assert store.store_kv(*new) == (True, True, False) and kept(store) == {'b', 'c'}
        put(store, e=TEXT * 100)
        assert store.store_kv(kv(unit(store, 'e'))) == (False,) and kept(store) == {'b', 'c'}
        assert sum(taken(store)) <= 2 * size


def test_room_is_made_for_one_more_unit(tmp_path):
    filled(tmp_path, 'a', 'b').close()
    with MemoryStore(tmp_path, 'model') as store:
        size = max(taken(store))
        assert store.has_room
        store.limit(3 * size)
        assert store.has_room
        store.limit(3 * size - 1)
        assert not store.has_room and kept(store) == {'a', 'b'}
        store.remove('a')
        assert store.has_room
        store.limit(size // 2)
        assert store.keys() == () and not store.has_room


def test_unit_larger_than_the_bound_is_not_tried_again(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        put(store, a=TEXT)
        store.limit(100)
        assert store.has_room, 'no size is known yet'
        assert store.store_kv(kv(unit(store, 'a'))) == (False,) and not store.has_room


def test_order_of_use_survives_a_restart(tmp_path):
    with filled(tmp_path, 'a', 'b', 'c') as store:
        for number in (1, 2, 3):
            os.utime(tmp_path / f'{number}.safetensors', (number, number))
        store.load_memory(unit(store, 'a').key, 0)
        size = max(taken(store))
    with MemoryStore(tmp_path, 'model') as store:
        store.limit(2 * size)
        assert kept(store) == {'a', 'c'}


def test_retrieved_units_count_as_used(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        memory = Memory(store, HashingEncoder(), len, 100)
        memory.upsert(('a', 'object', 'red cup: here'), ('b', 'object', 'blue jar: there'))
        for id in 'ab':
            store.store_kv(kv(unit(store, id)))
        (found,) = memory.retrieve('red cup', 100, 1)
        assert found.ids == ('a',)
        store.limit(max(taken(store)))
        assert kept(store) == {'a'}
