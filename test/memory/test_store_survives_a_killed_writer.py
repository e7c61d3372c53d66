"""After kill -9 during a write the store has exactly what was committed."""

import os
import random
import signal
import time
from pathlib import Path

from kept import is_whole, kv, put, unit

from embodied_kv.memory.records import Records
from embodied_kv.memory.store import MemoryStore

KILLS = 40
GOOD = b'.'


def write_without_end(folder, report):
    """Count up in two texts atomically; print at the beginning and after each round."""
    with MemoryStore(folder, 'model') as store:
        number = int(store.get('a').text)
        os.write(report, GOOD)
        while True:
            number += 1
            put(store, a=str(number), b=str(number))
            store.store_kv(
                kv(unit(store, 'a', 'b')), kv(unit(store, 'b')), kv(unit(store, 'fixed'))
            )
            store.advance()
            os.write(report, GOOD)


def killed(folder, seconds):
    """Kill another process after so many seconds and return the number of rounds it reported."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            write_without_end(folder, writing)
        finally:
            os._exit(1)
    os.close(writing)
    os.read(reading, 1)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    rounds = 0
    while said := os.read(reading, 4096):
        rounds += len(said)
    os.close(reading)
    assert os.WTERMSIG(status) == signal.SIGKILL, 'the writer ended by itself'
    return rounds


def test_killed_writers_leave_what_was_committed(tmp_path):
    with MemoryStore(tmp_path, 'model') as store:
        put(store, fixed='here', a='0', b='0')
        store.store_kv(kv(unit(store, 'fixed')))
    wait, swept, number, had = random.Random(0), 0, 0, False
    for _ in range(KILLS):
        rounds = killed(tmp_path, wait.uniform(0.0, 0.05))
        with MemoryStore(tmp_path, 'model') as store:
            swept += store.swept
            now = int(store.get('a').text)
            assert store.get('b').text == str(now), 'half a transaction'
            assert now in (number + rounds, number + rounds + 1)
            assert number + rounds <= store.step <= now
            assert is_whole(store, unit(store, 'fixed'))
            pairs = [unit(store, 'a', 'b'), unit(store, 'b')]
            kept = [u.key in store for u in pairs]
            assert kept[0] == kept[1], 'half a transaction of KV'
            if kept[0]:
                assert all(is_whole(store, u) for u in pairs)
            else:
                idle = now == number and not had  # killed twice before it wrote
                assert idle or now == number + rounds + 1, 'committed KV was lost'
            names = [n for n in os.listdir(tmp_path) if 'safetensors' in n]
            assert len(names) == 1 + 2 * kept[0] and not any(n.endswith('.new') for n in names)
            store.advance(now - store.step)
            number, had = now, kept[0]
    assert number >= KILLS // 4 and swept >= 2, (number, swept)


def test_a_file_is_on_the_medium_with_its_name_before_a_record_names_it(tmp_path, monkeypatch):
    calls, sync, rename, write = [], os.fsync, Path.replace, Records.write_unit

    def log_sync(descriptor):
        calls.append(('sync', Path(os.readlink(f'/proc/self/fd/{descriptor}')).name))
        sync(descriptor)

    def log_rename(source, target):
        calls.append((source.name, target.name))
        return rename(source, target)

    def log_record(*given):
        calls.append(('record',))
        return write(*given)

    with MemoryStore(tmp_path / 'memory', 'model') as store:
        put(store, a='1')
        monkeypatch.setattr(os, 'fsync', log_sync)
        monkeypatch.setattr(Path, 'replace', log_rename)
        monkeypatch.setattr(Records, 'write_unit', log_record)
        store.store_kv(kv(unit(store, 'a')))
    name = '1.safetensors'
    temporary = f'.{name}.new'
    assert calls == [('sync', temporary), (temporary, name), ('sync', 'memory'), ('record',)]
