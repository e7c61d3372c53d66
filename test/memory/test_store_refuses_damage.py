"""A KV file that differs in one bit from what was stored is refused with the reason."""

import os
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import LAYERS, is_whole, kv, put, unit

from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.memory.store import DATABASE, MemoryStore


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path, 'model', cache_bytes=0) as store:
        put(store, cup='on table', bin='empty')
        store.store_kv(kv(unit(store, 'cup')), kv(unit(store, 'bin')))
        yield store


def path(store):
    return store.folder / '1.safetensors'


def refuses(store, match):
    """Check that at least one layer is refused and that the other unit is intact."""
    found = []
    for layer in range(LAYERS):
        try:
            store.load_memory(unit(store, 'cup').key, layer)
        except RobotMemoryError as fault:
            found.append(str(fault))
            assert match in str(fault) and str(path(store)) in str(fault)
    assert found and is_whole(store, unit(store, 'bin'))
    return found


def test_file_truncated_at_any_place_is_refused(store):
    whole = path(store).read_bytes()
    for size in range(0, len(whole), 7):
        path(store).write_bytes(whole[:size])
        assert len(refuses(store, f'is damaged ({size} of {len(whole)} bytes)')) == LAYERS


def test_file_with_an_extra_byte_is_refused(store):
    path(store).write_bytes(path(store).read_bytes() + b'\0')
    refuses(store, 'is damaged')


def test_flipped_bit_in_any_third_byte_is_refused(store):
    whole = path(store).read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path(store).write_bytes(damaged)
        refuses(store, 'does not have its checksum')
    path(store).write_bytes(whole)
    assert is_whole(store, unit(store, 'cup'))


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=64))
def test_file_of_other_bytes_is_refused(store, content):
    path(store).write_bytes(content)
    refuses(store, 'is damaged')


def test_file_of_another_unit_is_refused(store):
    path(store).write_bytes((store.folder / '2.safetensors').read_bytes())
    refuses(store, 'is damaged')


def test_missing_file_is_refused(store):
    path(store).unlink()
    refuses(store, 'does not exist; forget this unit')


def test_file_truncated_while_it_is_read_is_refused(store, monkeypatch):
    read = os.preadv

    def cut_then_read(descriptor, *rest):
        os.truncate(path(store), 100)
        return read(descriptor, *rest)

    monkeypatch.setattr(os, 'preadv', cut_then_read)
    with pytest.raises(RobotMemoryError, match='it was cut short while it was read'):
        store.load_memory(unit(store, 'cup').key, 2)


def test_a_link_is_not_followed(store, tmp_path_factory):
    outside = tmp_path_factory.mktemp('outside') / 'file'
    path(store).rename(outside)
    path(store).symlink_to(outside)
    refuses(store, 'is a link, which is never followed; remove it')


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir])
def test_path_that_is_not_a_regular_file_is_refused(store, make):
    path(store).unlink()
    make(path(store))
    refuses(store, 'is no regular file; remove it')


def test_damaged_kv_is_removed_and_stored_again(store):
    path(store).write_bytes(b'')
    cup = unit(store, 'cup')
    store.forget_kv(cup.key)
    store.store_kv(kv(cup))
    assert is_whole(store, cup)


def database(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        put(store, **{f'cup{i}': 'x' * 500 for i in range(100)})
        store.store_kv(kv(unit(store, 'cup1')))
    return tmp_path / DATABASE


@pytest.mark.parametrize(
    'content', [b'no database at all' * 100, b'SQLite format 3\0' + b'x' * 4096]
)
def test_file_that_is_not_a_database_is_refused(tmp_path, content):
    database(tmp_path).write_bytes(content)
    with pytest.raises(
        RobotMemoryError, match=r'memory\.sqlite cannot be used: .*; check the disk'
    ):
        MemoryStore(tmp_path, 'model')


@pytest.mark.parametrize('part', [0.2, 0.5, 0.9])
def test_truncated_database_is_refused(tmp_path, part):
    path = database(tmp_path)
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(RobotMemoryError, match=r'cannot be used|is damaged'):
        MemoryStore(tmp_path, 'model')


def test_database_of_another_application_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / DATABASE) as other:
        other.execute('CREATE TABLE segments (x)')
    with pytest.raises(RobotMemoryError, match='is not a memory; choose another folder'):
        MemoryStore(tmp_path, 'model')


def test_error_of_another_format_names_it(tmp_path):
    with sqlite3.connect(database(tmp_path)) as db:
        db.execute('PRAGMA user_version = 7')
    with pytest.raises(RobotMemoryError, match=r'must be 2 \(got 7\)'):
        MemoryStore(tmp_path, 'model')


@pytest.mark.parametrize(
    'file', ['', '5', '{}', '{"number": -1}', '{"number": 1, "shape": [1, 2, 1, 1, 1], "dtype": '
    '"load", "offset": 9, "checksums": [1, 1]}', '[' * 10**5]
)  # fmt: skip
def test_forged_record_is_refused(tmp_path, file):
    with sqlite3.connect(database(tmp_path)) as db:
        db.execute('UPDATE units SET file = ?', (file,))
    with pytest.raises(RobotMemoryError, match=r'is damaged \(unit '):
        MemoryStore(tmp_path, 'model')


def test_a_linked_database_is_not_followed(tmp_path):
    path = database(tmp_path)
    path.rename(tmp_path / 'elsewhere')
    path.symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(RobotMemoryError, match='must be a regular file; move it away'):
        MemoryStore(tmp_path, 'model')


def test_files_without_a_record_are_swept_and_others_left(tmp_path):
    database(tmp_path)
    for name in ('9.safetensors', '.9.safetensors.new', 'mine.safetensors', 'notes'):
        (tmp_path / name).write_bytes(b'x')
    with MemoryStore(tmp_path, 'model') as store:
        assert store.swept == 2 and is_whole(store, unit(store, 'cup1'))
    names = {name for name in os.listdir(tmp_path) if not name.startswith('memory.')}
    assert names == {'1.safetensors', 'mine.safetensors', 'notes'}
