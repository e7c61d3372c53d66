"""A memory on a full disk can still remove entries, and add others in the space that this frees.

The fault is injected between the records and SQLite: a commit finds no space as long as the
reserve file occupies its space, or always. If a small file system can be mounted, the last test
fills one.
"""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from kept import is_whole, kv, put, unit

from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.files import DiskFullError
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.records import Records
from embodied_kv.memory.store import RESERVE, MemoryStore

UNITS = 40


class FullDisk:
    """A database that cannot commit until the reserve file is removed."""

    def __init__(self, database, reserve, error='database or disk is full'):
        self._database, self._reserve, self._error = database, reserve, error

    def __getattr__(self, name):
        return getattr(self._database, name)

    def execute(self, statement, *values):
        if statement == 'COMMIT' and self._reserve.exists():
            raise sqlite3.OperationalError(self._error)
        return self._database.execute(statement, *values)


class NoReserve:
    """A reserve that frees no space, as on a disk that was full before the memory started."""

    def exists(self):
        return True


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        put(store, **{f'cup{i}': f'on table {i}' for i in range(UNITS)})
        store.store_kv(*(kv(unit(store, f'cup{i}')) for i in range(UNITS)))
        yield store


def fill(store, reserve=None, **how):
    records = store._records
    records._db = FullDisk(records._db, reserve or store.folder / RESERVE, **how)


def files(store):
    return len(list(store.folder.glob('*.safetensors')))


@pytest.mark.parametrize('error', ['database or disk is full', 'disk I/O error'])
def test_segments_and_kv_are_removed_on_a_full_disk(store, error):
    fill(store, error=error)
    cup = unit(store, 'cup0')
    assert store.remove('cup0').lost == (cup.key,) and len(store.list()) == UNITS - 1
    store.forget_kv(*store.keys()[:20])
    assert len(store.keys()) == files(store) == UNITS - 21
    assert is_whole(store, unit(store, 'cup39'))
    assert (store.folder / RESERVE).stat().st_size > 0, 'the space is held again'


def test_a_full_disk_is_opened_and_renewed(store, monkeypatch):
    begin = Records._open

    def full(records):
        begin(records)
        records._db = FullDisk(records._db, records.path.with_name(RESERVE))

    store.close()
    monkeypatch.setattr(Records, '_open', full)
    with MemoryStore(store.folder, 'other', renew=True) as store:
        assert store.keys() == () and files(store) == 0 and len(store.list()) == UNITS
    with MemoryStore(store.folder, 'other') as store:
        assert store.remove('cup1').changed


def test_additions_use_free_pages_of_the_database(store):
    fill(store)
    pages = store._records._db.execute('PRAGMA page_count').fetchone()
    with pytest.raises(DiskFullError, match=r'is full; free disk space, or delete \*.safetensors'):
        put(store, **{f'new{i}': 'word ' * 500 for i in range(100)})
    assert (
        len(store.list()) == UNITS
        and store._records._db.execute('PRAGMA page_count').fetchone() == pages
    )
    store.remove('cup3')
    put(store, new='x')
    assert store.advance(2) == store.step == 2 and store.get('new').text == 'x'


def test_without_a_reserve_the_files_go_and_their_units_count_as_missing(store):
    cup = unit(store, 'cup0')
    fill(store, NoReserve())
    with pytest.raises(DiskFullError):
        store.forget_kv(cup.key)
    assert cup.key not in store and files(store) == UNITS - 1
    store.close()
    with MemoryStore(store.folder, 'model') as store:
        assert cup.key not in store and len(store.keys()) == files(store) == UNITS - 1
        store.store_kv(kv(cup))
        assert is_whole(store, cup) and is_whole(store, unit(store, 'cup1'))


def test_a_change_that_fails_leaves_memory_and_store_as_they_were(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        memory = Memory(store, HashingEncoder(), len, 100)
        memory.upsert(('cup', 'object', 'cup: on table'), ('bin', 'object', 'bin: empty'))
        memory.advance(2)
        units, sentences = memory.units(), memory.sentences
        whole = store._records._db
        for change in (
            lambda: memory.upsert(('cup', 'object', 'cup: gone'), ('jar', 'object', 'jar: red')),
            lambda: memory.remove('cup'),
            lambda: memory.advance(20),
        ):
            fill(store, NoReserve())
            with pytest.raises(DiskFullError):
                change()
            store._records._db = whole
            memory.groups.check_integrity()
            assert (memory.units(), memory.sentences) == (units, sentences)
            assert [s.text for s in store.list()] == [*sentences.values()] and store.step == 2
        memory.upsert(('jar', 'object', 'jar: red'))
        memory.remove('cup')
        before = memory.units()
        memory.groups.check_integrity()
    with MemoryStore(tmp_path, 'model') as store:
        assert Memory(store, HashingEncoder(), len, 100).units() == before


@pytest.mark.parametrize('verb', ['upsert', 'remove', 'advance'])
def test_a_change_of_memory_is_one_transaction(tmp_path, verb, monkeypatch):
    with MemoryStore(tmp_path, 'model') as store:
        memory = Memory(store, HashingEncoder(), len, 100)
        memory.upsert(('cup', 'object', 'cup: on table'))
        changes, change = [], Records.change

        def count(records, **how):
            changes.append(how)
            return change(records, **how)

        monkeypatch.setattr(Records, 'change', count)
        given = {'upsert': ('bin', 'object', 'bin: empty'), 'remove': 'cup', 'advance': 30}
        getattr(memory, verb)(given[verb])
        assert len(changes) == 1


STORY = """
import sys
sys.path.insert(0, sys.argv[1])
from kept import kv, put, unit
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.memory.store import MemoryStore

def fill(store, n):
    try:
        while True:
            put(store, **{f's{n}': 'text ' * 60 + str(n)})
            n += 1
    except RobotMemoryError:
        return n

with MemoryStore('/mnt/memory', 'model') as store:
    put(store, cup='on table')
    store.store_kv(kv(unit(store, 'cup')))
    n, gone = fill(store, 0), 0
    for _ in range(5):  # filled again and again, and always emptied
        for _ in range(10):
            store.remove(f's{gone}')
            gone += 1
        put(store, small=str(gone))
        n = fill(store, n)
with MemoryStore('/mnt/memory', 'other', renew=True) as store:
    assert not store.keys()
    store.remove(f's{gone}')
    put(store, small='again')
print('survived', n > 100)
"""


def test_memory_survives_a_real_disk_that_fills_up_repeatedly():
    if not shutil.which('unshare'):
        pytest.skip('unshare is not installed')
    mount = 'mount -t tmpfs -o size=600k tmpfs /mnt || exit 77; exec "$@"'
    story = (sys.executable, '-c', STORY, str(Path(__file__).parent))
    spaces = ('unshare', '--user', '--map-root-user', '--mount')
    done = subprocess.run(
        [*spaces, 'sh', '-c', mount, 'sh', *story], capture_output=True, text=True
    )
    if done.returncode == 77 or 'unshare:' in done.stderr:
        pytest.skip('no file system can be mounted here')
    assert done.stdout == 'survived True\n', done.stderr
