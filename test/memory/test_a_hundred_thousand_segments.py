"""100,000 segments can be stored, found and changed, each in limited time."""

import time

from embodied_kv.memory.segment import Segment
from embodied_kv.memory.store import MemoryStore

COUNT = 100_000


def test_hundred_thousand_segments_are_stored_and_one_is_found(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        made = (Segment(f'thing {i}', 'object', f'on shelf {i % 97}') for i in range(COUNT))
        changes = store.upsert(*made, Segment('shelf', 'place', 'full'))
        assert all(change.changed for change in changes)
    with MemoryStore(tmp_path, 'model') as store:
        assert len(store.list()) == COUNT + 1
        start = time.perf_counter()
        for i in range(0, COUNT, 1000):
            assert store.get(f'thing {i}').text == f'on shelf {i % 97}'
        store.upsert(Segment('thing 7', 'object', 'gone'))
        store.remove('thing 8')
        assert time.perf_counter() - start < 2, 'the records are searched one by one'
        assert len(store.list()) == COUNT
