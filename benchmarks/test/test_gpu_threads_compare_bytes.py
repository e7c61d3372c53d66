"""Stage `threads` compares the bytes made by three concurrent threads with those of one thread."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from benchmarks.common.hostile_device import HostileDevice
from benchmarks.gpu import threads
from embodied_kv.capsule import registry
from embodied_kv.engine import engine_thread
from embodied_kv.session import engine_part

ARGS = Namespace(device='cpu', dry=True, json=True)


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_together_equals_alone():
    found = threads.run(ARGS)
    assert found['ok'], found
    assert {row['of'] for row in found['rows']} == {
        'action chunk',
        'planner row',
        'frame',
        'stream',
        'planner row in use',
        'engine built beside copies',
    }
    assert all(row['compared'] for row in found['rows']) and found['loaded'] > 0


def differing(found):
    assert not found['ok']
    return {(row['of'], row['tier']) for row in found['rows'] if row['differ']}


def test_a_copy_to_the_host_that_is_not_whole_differs(monkeypatch):
    @torch.inference_mode()
    def half(self, item, tier):
        made = copied(self, item, tier)
        for name, tensor in made.capsule.tensors.items() if made.capsule else ():
            if name == 'session/row/0/v':
                tensor.view(-1)[-1] += 1
        return made

    copied = registry.TierCopier.copied
    monkeypatch.setattr(registry.TierCopier, 'copied', half)
    assert ('frame', 'host') in differing(threads.run(ARGS))


def test_stored_kv_that_differs_is_counted(monkeypatch):
    computed = threads.Together.step

    def step(self, work):
        result = computed(self, work)
        if isinstance(result, list):  # K and V of a unit to be stored
            result[0].zero_()
        return result

    monkeypatch.setattr(threads.Together, 'step', step)
    assert ('planner row', '') in differing(threads.run(ARGS))


def test_a_chunk_that_differs_is_counted(monkeypatch):
    made = engine_thread.EngineThread._denoise

    def other(self, *args):
        chunk = made(self, *args)
        chunk.values.flat[0] += 1
        return chunk

    monkeypatch.setattr(engine_thread.EngineThread, '_denoise', other)
    assert ('action chunk', '') in differing(threads.run(ARGS))


def test_a_thread_that_fails_ends_the_stage(monkeypatch):
    def fails(*_):
        raise OSError('no space is left')

    monkeypatch.setattr(registry.TierCopier, 'copied', fails)
    with pytest.raises(OSError, match='no space is left'):
        threads.run(ARGS)


def test_an_engine_that_cannot_be_built_meanwhile_says_why(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError('operation not permitted when stream is capturing')

    monkeypatch.setattr(threads, 'Engine', fails)
    row = threads.built_beside_copies('cpu')
    assert not row['ok'] and row['why'].endswith('when stream is capturing')


@pytest.mark.slow
def test_late_streams_differ_only_without_a_wait(monkeypatch):
    """The stream of the engine thread is late, so copies on other threads must wait for it."""
    with HostileDevice():
        assert threads.run(ARGS)['ok']
    waits = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(engine_thread.EngineThread, '_finish', lambda self: None)
    monkeypatch.setattr(engine_part, 'Stream', SimpleNamespace(current=lambda _: waits))
    with HostileDevice():
        assert differing(threads.run(ARGS)) >= {('frame', 'host'), ('frame', 'disk')}


def test_what_was_never_compared_is_not_ok():
    assert not any(row['ok'] for row in threads.Tally().rows())
