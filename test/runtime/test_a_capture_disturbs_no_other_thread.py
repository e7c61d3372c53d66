"""A cache captures by the expected CUDA calls, which do not affect other threads.

A fake CUDA records the calls.
"""

import gc
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
from captures import capture, watched

from embodied_kv.runtime import graph_cache
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.stream import Event


@dataclass
class FakeCuda:
    """Records the calls that a capture makes."""

    calls: list[tuple] = field(default_factory=list)

    def note(self, name, result=None):
        return lambda *args, **kwargs: self.calls.append((name, *args, *kwargs.items())) or result

    def names(self):
        return [name for name, *_ in self.calls]

    def graph(self):
        made = type('Graph', (), {})()
        for name in ('capture_begin', 'capture_end', 'replay'):
            setattr(made, name, self.note(name))
        return made


class FakeStream:
    cuda, device = 'stream', torch.device('cpu')

    @classmethod
    def on(cls, device):
        return cls()

    current = on

    def use(self):
        return nullcontext()

    def record(self):
        return Event(None)

    def wait(self, event):
        pass


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(graph_cache, 'Stream', FakeStream)
    monkeypatch.setattr(torch.cuda, 'CUDAGraph', cuda.graph)
    monkeypatch.setattr(torch.cuda, 'graph_pool_handle', lambda: 'pool')
    for name in ('synchronize', 'empty_cache'):
        monkeypatch.setattr(torch.cuda, name, cuda.note(name))
    monkeypatch.setattr(gc, 'collect', cuda.note('collect'))
    return cuda


def graphs(count):
    x, cache = Buffer('x', torch.zeros((3,), dtype=torch.float32)), watched()

    def add():
        x.tensor.add_(1)

    return [capture(cache, f'add {i}', add, [x]) for i in range(count)]


def test_a_capture_minds_calls_of_its_own_thread_alone(cuda):
    graphs(2)
    begun = [call for call in cuda.calls if call[0] == 'capture_begin']
    asked = ('pool', 'pool'), ('capture_error_mode', 'thread_local')
    assert begun == [('capture_begin', *asked)] * 2


def test_memory_is_freed_before_the_first_capture_alone(cuda):
    graphs(5)
    first = ['collect', 'empty_cache']
    assert cuda.names() == first + ['capture_begin', 'capture_end'] * 5


def test_each_engine_frees_memory_once(cuda):
    graphs(2), graphs(2)
    assert cuda.names().count('collect') == cuda.names().count('empty_cache') == 2


def test_a_capture_that_fails_is_ended(cuda):
    x, runs = Buffer('x', torch.zeros((3,), dtype=torch.float32)), []

    def fail():
        runs.append('run')
        if cuda.names()[-1:] == ['capture_begin']:
            raise MemoryError('no memory')

    with pytest.raises(MemoryError, match='no memory'):
        capture(watched(), 'fails', fail, [x])
    assert cuda.names()[-2:] == ['capture_begin', 'capture_end'] and len(runs) == 3


def test_a_replay_runs_what_was_captured(cuda):
    (graph,) = graphs(1)
    graph.replay()
    assert cuda.names()[-1] == 'replay'
