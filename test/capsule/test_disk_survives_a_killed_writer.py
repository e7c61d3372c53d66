"""After kill -9 during a write each capsule is whole or absent, and earlier ones are intact."""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager

import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.disk import Disk

KILLS = 100
NAMES = ['earlier.safetensors', 'first.safetensors', 'second.safetensors']


def capsule(name, number):
    """Return a capsule whose tensors all contain its number, which reveals a mixture of two."""
    tensors = {f'part/{i}': torch.full((10_000,), number) for i in range(8)}
    return Capsule(name, Boundary('s', number, 0), 'f', tensors, {}, 1.0)


def assert_whole(loaded):
    assert len(loaded.tensors) == 8
    for tensor in loaded.tensors.values():
        assert tensor.shape == (10_000,) and bool((tensor == loaded.boundary.number).all())


@contextmanager
def a_writer(folder):
    """Run another process that saves without end, until the context ends and it is killed."""
    capsules = [capsule('first', 1), capsule('second', 2)]
    process = os.fork()
    if not process:
        try:
            disk = Disk(folder)
            while True:
                for each in capsules:
                    if each.name in disk.names():  # saved by the previous writer
                        disk.drop(each.name)
                    disk.save(each)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, 'the writer ended by itself'


def await_a_write(folder, patience=5.0):
    """Return while a temporary file is being written, however slow the machine is."""
    until = time.monotonic() + patience
    while not any(path.suffix == '.new' for path in folder.iterdir()):
        assert time.monotonic() < until, 'the writer saves nothing'


def test_a_hundred_killed_writers_leave_whole_capsules(tmp_path):
    folder = tmp_path / 'capsules'
    disk = Disk(folder)
    disk.save(capsule('earlier', 0))
    before = (folder / 'earlier.safetensors').read_bytes()
    wait = random.Random(0)
    torn = 0
    for kill in range(KILLS):
        with a_writer(folder):
            if kill % 2:
                await_a_write(folder)
            else:
                time.sleep(wait.uniform(0.002, 0.03))
        files = {path.name for path in folder.iterdir()}
        left = {name for name in files if name.endswith('.new')}
        assert len(left) <= 1 and files - left <= set(NAMES)
        torn += len(left)
        disk = Disk(folder)
        assert {path.name for path in folder.iterdir()} == files - left
        for name in disk.names():
            assert_whole(disk.load(name, 'f'))
        assert 'earlier' in disk.names()
    assert torn >= KILLS // 10, f'only {torn} were killed in the middle of a write'
    assert (folder / 'earlier.safetensors').read_bytes() == before
    assert list(tmp_path.iterdir()) == [folder]


def test_a_living_writer_keeps_its_temporary_file(tmp_path, monkeypatch):
    disk, sync, seen = Disk(tmp_path), os.fsync, []

    def open_another(descriptor):
        Disk(tmp_path)
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        sync(descriptor)

    monkeypatch.setattr(os, 'fsync', open_another)
    disk.save(capsule('a', 1))
    assert seen == [['.a.safetensors.new'], ['a.safetensors']]


def test_a_file_is_synced_before_it_has_its_name_and_its_name_after(tmp_path, monkeypatch):
    disk, calls = Disk(tmp_path), []
    sync, rename = os.fsync, os.replace

    def log_sync(descriptor):
        calls.append(os.readlink(f'/proc/self/fd/{descriptor}'))
        sync(descriptor)

    def log_rename(source, target):
        calls.append(f'{source} to {target}')
        rename(source, target)

    monkeypatch.setattr(os, 'fsync', log_sync)
    monkeypatch.setattr(os, 'replace', log_rename)
    disk.save(capsule('a', 1))
    new, path = tmp_path / '.a.safetensors.new', tmp_path / 'a.safetensors'
    assert calls == [f'{new}', f'{new} to {path}', f'{tmp_path}']
    disk.drop('a')
    assert calls[3:] == [f'{tmp_path}']


def test_the_next_save_removes_what_a_killed_writer_left(tmp_path):
    disk = Disk(tmp_path)
    (tmp_path / '.old.safetensors.new').write_bytes(b'half')
    (tmp_path / '.other').write_bytes(b'not ours')
    disk.save(capsule('a', 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['.other', 'a.safetensors']


def test_of_threads_that_save_one_name_one_succeeds(tmp_path):
    disks, failed = [Disk(tmp_path), Disk(tmp_path)], []

    def save(disk, number):
        for _ in range(5):
            try:
                disk.save(capsule('a', number))
            except CapsuleError as error:
                failed.append(error)

    threads = [threading.Thread(target=save, args=(disk, n)) for n, disk in enumerate(disks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 9 and all('already' in str(error) for error in failed)
    assert_whole(disks[0].load('a', 'f'))
    assert [path.name for path in tmp_path.iterdir()] == ['a.safetensors']
