"""A graph replays compiled code if there is a package and the bound view fits it."""

from functools import partial

import pytest
import torch
from captures import NoRows, watched

from embodied_kv.runtime.buffer import Buffer, BufferMovedError
from embodied_kv.runtime.graph_cache import GraphCache, Shape

SHAPE = Shape('add', 1)


class Stub:
    """A compiler whose packages, if there are any, subtract what the computation adds."""

    def __init__(self, *names, packages=True):
        self.names, self.has_packages, self.asked = names, packages, []
        self.missing, self.pending = [], []

    def compile(self, name, fn, buffers):
        self.asked.append((name, fn, [buffer.name for buffer in buffers]))
        (buffer,) = buffers
        return partial(subtract, buffer) if self.has_packages else None


def subtract(buffer):
    buffer.tensor.sub_(1)


def captured(compiler, view):
    x = Buffer('x', torch.zeros((1,), dtype=torch.float32))

    def add(_):
        x.tensor.add_(1)

    cache = watched(compiler=compiler)
    return cache, cache.capture(SHAPE, add, view, writes=[x]), x


def test_compiled_code_is_chosen_by_the_bound_inputs():
    compiler, view = Stub(str(SHAPE)), NoRows()
    cache, graph, x = captured(compiler, view)
    ((name, fn, buffers),) = compiler.asked
    assert (name, fn.args, buffers) == ('add 1x0', (view,), ['x'])
    assert cache.compiled_names == ['add 1x0'] and cache.captures == 2 and not x.tensor
    for view.fits_compiled, value in ((True, -1), (False, 0), (False, 1), (True, 0)):
        graph.replay()
        assert x.tensor == value
    assert (graph.replays, graph.compiled_replays) == (4, 2)


@pytest.mark.parametrize('compiler', [None, Stub(), Stub(str(SHAPE), packages=False)])
def test_without_a_package_the_function_runs(compiler):
    cache, graph, x = captured(compiler, NoRows())
    graph.replay()
    assert x.tensor == 1 and not graph.is_compiled and not cache.compiled_names
    assert (cache.captures, graph.compiled_replays) == (1, 0)


def test_a_moved_buffer_is_not_replayed_by_compiled_code_either():
    _, graph, x = captured(Stub(str(SHAPE)), NoRows())
    x.tensor.data = torch.zeros(1)
    with pytest.raises(BufferMovedError):
        graph.replay()
    assert not x.tensor and not graph.replays


def test_nothing_is_compiled_later_if_nothing_is_missing():
    for compiler in (None, Stub()):
        cache, said = GraphCache(compiler=compiler), []
        assert cache.compile_later(said.append, lambda work: work()) is None
        assert cache.compile_now(said.append) == []
        assert not said and cache.has_compiler == (compiler is not None)
