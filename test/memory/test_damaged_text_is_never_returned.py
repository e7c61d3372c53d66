"""A segment with a damaged record is named and refused; none of its text is returned."""

import sqlite3

import pytest
from kept import is_whole, kv, put, unit

from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.memory.store import DATABASE, MemoryStore

TEXTS = dict(cup='cup: on the left table', bin='bin: empty')


@pytest.fixture
def folder(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        put(store, **TEXTS)
        store.store_kv(kv(unit(store, 'cup')))
        store.set_fact('who', 'me')
    return tmp_path


def change(folder, *statements):
    with sqlite3.connect(folder / DATABASE) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    'damage',
    [
        "text = 'cup: on the right table'",
        "text = ''",
        "text = CAST(x'637570ff' AS TEXT)",
        "kind = 'note'",
        'version = 2',
        'step = 7',
        'checksum = checksum + 1',
        'checksum = NULL',
    ],
)
def test_damage_in_any_field_of_a_segment_is_refused(folder, damage):
    change(folder, f"UPDATE segments SET {damage} WHERE id = 'cup'")
    with MemoryStore(folder, 'model') as store:
        for read in (
            lambda: store.get('cup'),
            store.list,
            store.segment_records,
            lambda: Memory(store, HashingEncoder(), len, 100),
            lambda: put(store, cup='cup: gone'),
        ):
            with pytest.raises(RobotMemoryError, match=r"segment 'cup' in .* is damaged") as fault:
                read()
        assert store.get('bin').text == TEXTS['bin']
    change(folder, str(fault.value).split('"')[1])  # the remedy of the message
    with MemoryStore(folder, 'model') as store:
        assert Memory(store, HashingEncoder(), len, 100).sentences == {'bin': TEXTS['bin']}


def test_flipped_bits_in_the_file_are_refused(folder):
    path = folder / DATABASE
    content = path.read_bytes()
    assert content.count(b'left table') == 1
    path.write_bytes(content.replace(b'left table', b'lefu table'))
    with (
        MemoryStore(folder, 'model') as store,
        pytest.raises(RobotMemoryError, match="segment 'cup'"),
    ):
        store.list()


def test_damaged_fact_is_refused(folder):
    change(folder, "UPDATE facts SET value = 'you' WHERE name = 'who'")
    with (
        MemoryStore(folder, 'model') as store,
        pytest.raises(RobotMemoryError, match=r"fact 'who' in .* is damaged"),
    ):
        store.fact('who')


def test_damaged_lengths_of_a_unit_are_refused(folder):
    change(folder, "UPDATE units SET lengths = '[1]'")
    with pytest.raises(RobotMemoryError, match=r'is damaged \(unit .*checksum'):
        MemoryStore(folder, 'model')


def test_truncated_embedding_is_computed_again(folder):
    change(folder, "UPDATE segments SET embedding = x'00' WHERE id = 'cup'")
    with MemoryStore(folder, 'model') as store:
        memory = Memory(store, HashingEncoder(), len, 100)
        ((segment, score), _) = memory.nearest(TEXTS['cup'])
        assert segment.id == 'cup' and score > 0.9


def test_a_memory_of_the_format_before_checksums_is_read(folder):
    tables = 'facts', 'segments', 'units'
    change(folder, *(f'ALTER TABLE {table} DROP COLUMN checksum' for table in tables))
    change(folder, 'PRAGMA user_version = 1', 'PRAGMA journal_mode = WAL')
    for _ in range(2):
        with MemoryStore(folder, 'model') as store:
            assert {s.id: s.text for s in store.list()} == TEXTS and store.fact('who') == 'me'
            assert is_whole(store, unit(store, 'cup'))
            put(store, bin='bin: empty')
    with MemoryStore(folder, 'model') as store:
        put(store, bin='bin: full', jar='jar: red')
        store.store_kv(kv(unit(store, 'jar')))
    with MemoryStore(folder, 'model') as store:
        assert len(store.list()) == 3 and is_whole(store, unit(store, 'jar'))
    change(folder, "UPDATE segments SET text = 'jar: blue' WHERE id = 'jar'")
    with (
        MemoryStore(folder, 'model') as store,
        pytest.raises(RobotMemoryError, match="segment 'jar'"),
    ):
        store.list()
