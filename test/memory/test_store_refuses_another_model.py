"""A store with KV of another model is refused, or renewed with its text only."""

import os

import pytest
from kept import is_whole, kv, put, unit

from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.memory.store import MemoryStore


@pytest.fixture
def folder(tmp_path):
    with MemoryStore(tmp_path, 'first') as store:
        put(store, cup='on table')
        store.store_kv(kv(unit(store, 'cup')))
        store.advance(5)
    return tmp_path


def test_store_of_another_model_is_refused_and_unchanged(folder):
    with pytest.raises(RobotMemoryError, match=r'must hold KV of the model second .got first'):
        MemoryStore(folder, 'second')
    with MemoryStore(folder, 'first') as store:
        assert is_whole(store, unit(store, 'cup'))


def test_renewed_it_keeps_its_text_and_drops_its_kv(folder):
    with MemoryStore(folder, 'second', renew=True) as store:
        assert store.get('cup').text == 'on table' and store.step == 5
        assert unit(store, 'cup').key not in store and store.swept == 1
        assert not [name for name in os.listdir(folder) if name.endswith('.safetensors')]
        store.store_kv(kv(unit(store, 'cup')))
    with MemoryStore(folder, 'second') as store:
        assert is_whole(store, unit(store, 'cup'))


def test_renewing_what_is_its_own_drops_nothing(folder):
    with MemoryStore(folder, 'first', renew=True) as store:
        assert is_whole(store, unit(store, 'cup')) and store.swept == 0
