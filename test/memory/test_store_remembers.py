"""A store returns what was stored; only changed segments lose their KV."""

import os

import pytest
import torch
from kept import is_whole, kv, put, unit

from embodied_kv.memory.segment import RobotMemoryError, Segment
from embodied_kv.memory.store import MemoryStore


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path / 'memory', 'model') as store:
        yield store


def files(store):
    return sorted(name for name in os.listdir(store.folder) if name.endswith('.safetensors'))


def test_a_segment_has_versions_and_the_step_of_its_last_change(store):
    put(store, cup='on table', bin='empty')
    assert store.advance(3) == store.step == 3
    put(store, cup='in bin', bin='empty')
    cup, bin = store.list()
    assert (cup.version, cup.step, bin.version, bin.step) == (2, 3, 1, 0)
    assert store.get('cup') == cup
    with pytest.raises(RobotMemoryError, match="segment 'fork' does not exist"):
        store.get('fork')
    with pytest.raises(ValueError, match='steps must be >= 0'):
        store.advance(-1)


def test_the_same_text_again_is_no_change(store):
    put(store, cup='on table')
    store.store_kv(kv(unit(store, 'cup')))
    store.advance()
    (change,) = put(store, cup='on table')
    assert not change.changed and change.lost == () and change.segment.step == 0
    assert is_whole(store, unit(store, 'cup'))


def test_another_kind_is_a_change(store):
    put(store, cup='on table')
    (change,) = store.upsert(Segment('cup', 'note', 'on table'))
    assert change.changed and change.segment.version == 2
    assert store.list() == (change.segment,)


def test_an_id_that_comes_twice_is_refused_and_nothing_is_written(store):
    with pytest.raises(RobotMemoryError, match='ids of one change must be distinct'):
        store.upsert(Segment('cup', 'object', 'here'), Segment('cup', 'object', 'there'))
    assert store.list() == ()


def test_a_bad_segment_among_good_ones_writes_nothing(store):
    with pytest.raises(RobotMemoryError, match='must be one of object'):
        store.upsert(Segment('cup', 'object', 'here'), Segment('bin', 'thing', 'there'))
    assert store.list() == ()


def test_an_update_loses_the_units_that_hold_the_segment_and_no_others(store):
    put(store, cup='on table', bin='empty', box='closed')
    both, alone, other = unit(store, 'cup', 'bin'), unit(store, 'bin'), unit(store, 'box')
    assert store.store_kv(kv(both), kv(alone), kv(other)) == (True, True, True)
    (change,) = put(store, cup='in bin')
    assert change.lost == (both.key,) and both.key not in store
    assert is_whole(store, alone) and is_whole(store, other) and len(files(store)) == 2
    assert store.remove('bin').lost == (alone.key,)
    assert is_whole(store, other) and len(files(store)) == 1
    with pytest.raises(
        RobotMemoryError, match=r'KV of unit .* does not exist; compute it from its segments'
    ):
        store.load_memory(both.key, 0)


def test_kv_of_a_changed_segment_is_not_stored(store):
    put(store, cup='on table')
    old = unit(store, 'cup')
    put(store, cup='in bin')
    put(store, cup='on table')  # the same text, but it may have been read in between
    gone = kv(unit(store, 'cup'))
    store.remove('cup')
    assert store.store_kv(kv(old), gone) == (False, False)
    assert old.key not in store and files(store) == []


def test_kept_again_takes_the_place(store):
    put(store, cup='on table')
    one = unit(store, 'cup')
    store.store_kv(kv(one))
    store.load_memory(one.key, 0)
    store.store_kv(kv(one, torch.bfloat16))
    assert store.load_memory(one.key, 0)[0].dtype == torch.bfloat16 and len(files(store)) == 1


def test_forgotten_kv_is_gone_and_its_text_stays(store):
    put(store, cup='on table')
    one = unit(store, 'cup')
    store.store_kv(kv(one))
    store.forget_kv(one.key, 'unknown')
    assert one.key not in store and files(store) == [] and store.get('cup')


def test_a_layer_that_is_not_there_is_refused(store):
    put(store, cup='on table')
    store.store_kv(kv(unit(store, 'cup')))
    for layer in (-1, 3):
        with pytest.raises(LookupError, match=r'layer must be in \[0, 3\)'):
            store.load_memory(unit(store, 'cup').key, layer)


def test_kv_of_any_dtype_is_returned_unchanged(store):
    put(store, cup='on table')
    one = unit(store, 'cup')
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        made = kv(one, dtype)
        store.store_kv(made)
        k, v = store.load_memory(one.key, 2)
        assert torch.equal(k, made.k[2]) and torch.equal(v, made.v[2]) and k.dtype == dtype


def test_a_failed_write_leaves_what_was_there(store, monkeypatch):
    put(store, cup='on table', bin='empty')
    one, two = unit(store, 'cup'), unit(store, 'bin')
    store.store_kv(kv(one))

    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(
        RobotMemoryError, match=r'cannot be written: No space left .*; free disk space'
    ):
        store.store_kv(kv(one, torch.bfloat16), kv(two))
    monkeypatch.undo()
    assert is_whole(store, one) and two.key not in store
    assert len(os.listdir(store.folder)) == 5, 'database, journal, lock, reserve, one file'


def test_a_folder_is_open_once(store, tmp_path):
    with pytest.raises(RobotMemoryError, match='is in use, possibly by another process'):
        MemoryStore(store.folder, 'model')
    store.close()
    store.close()
    MemoryStore(store.folder, 'model').close()


def test_folders_and_files_are_of_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        with MemoryStore(tmp_path / 'all' / 'robot', 'model') as store:
            put(store, cup='on table')
            store.store_kv(kv(unit(store, 'cup')))
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob('*')}
    assert modes.pop('all') == modes.pop('robot') == '0o700'
    assert len(modes) == 5 and set(modes.values()) == {'0o600'}, modes


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(
        RobotMemoryError, match='file cannot be opened: File exists; choose a folder'
    ):
        MemoryStore(tmp_path / 'file', 'model')
