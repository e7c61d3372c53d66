"""A soak fails and reports the broken invariant if something is not released."""

import os

import pytest

from benchmarks.common import report
from benchmarks.soak import __main__ as command
from benchmarks.soak import run, world
from embodied_kv import storage
from embodied_kv.capsule.disk import Disk
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import Job
from embodied_kv.kv.handle import Lease
from embodied_kv.kv.stream_pool import StreamPool
from embodied_kv.memory.files import KvFiles

CAPSULES = {'snapshot', 'load', 'move', 'drop'}
MEMORY = {'tell', 'warm', 'forget'}
LANGUAGE = {'ask', 'cancel'}


@pytest.fixture
def soaked(monkeypatch):
    """Return a function that soaks without failures and returns the broken invariants."""

    def soak(others=frozenset(), frames=100, patience=0.2):
        few = [operation for operation in run.OTHERS if operation.name in others]
        monkeypatch.setattr(run, 'OTHERS', few or run.OTHERS)
        monkeypatch.setattr(world, 'PATIENCE', patience)
        return run.soak(frames, seed=0, failures=0.0).ledger.broken

    return soak


def now_and_then(monkeypatch, owner, name, instead=lambda *_: None, every=5):
    """Replace every n-th call of a method by another function."""
    real, calls = getattr(owner, name), []

    def patched(*args):
        calls.append(None)
        return (real if len(calls) % every else instead)(*args)

    monkeypatch.setattr(owner, name, patched)


def test_rows_that_nobody_gives_back(soaked, monkeypatch):
    now_and_then(monkeypatch, Lease, 'release')
    assert {'free prefix rows', 'leases'} <= {*soaked()}


def test_futures_that_nobody_answers(soaked, monkeypatch):
    now_and_then(monkeypatch, Job, 'run', every=40)
    assert 'futures that are not answered' in soaked(LANGUAGE)


def test_streams_that_end_twice(soaked, monkeypatch):
    take = StreamPool.pop_ended
    monkeypatch.setattr(StreamPool, 'pop_ended', lambda streams: take(streams) * 2)
    assert 'a stream ends once' in soaked(LANGUAGE)


def test_streams_that_never_say_that_they_ended(soaked, monkeypatch):
    take = StreamPool.pop_ended
    monkeypatch.setattr(StreamPool, 'pop_ended', lambda streams: take(streams)[1:])
    assert 'streams that never say that they ended' in soaked(LANGUAGE)


def test_files_of_memory_that_stay(soaked, monkeypatch):
    monkeypatch.setattr(KvFiles, 'remove', lambda *_: None)
    assert 'files of memory' in soaked(MEMORY)


def test_files_of_capsules_that_stay(soaked, monkeypatch):
    monkeypatch.setattr(Disk, 'drop', lambda *_: None)
    assert 'files of capsules' in soaked(CAPSULES)


def test_descriptors_that_stay_open(soaked, monkeypatch):
    leaked, opened = [], storage.open_regular

    def leaking(path):
        leaked.append(os.open(os.devnull, os.O_RDONLY))
        return opened(path)

    monkeypatch.setattr(storage, 'open_regular', leaking)
    try:
        assert 'file descriptors' in soaked(CAPSULES)
    finally:
        for descriptor in leaked:
            os.close(descriptor)


def test_memory_that_grows_ends_the_command_with_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    hoard, commit = [], Engine.denoise

    def denoise(*args):
        hoard.append(b'x' * 8_000_000)  # shows also if the process freed a lot before
        return commit(*args)

    monkeypatch.setattr(Engine, 'denoise', denoise)
    with pytest.raises(SystemExit, match='resident memory: grew by') as caught:
        command.main(['--frames', '100', '--json'])
    assert isinstance(caught.value.code, str)  # a message, so that the exit status is 1
    assert 'resident memory' in capsys.readouterr().out
