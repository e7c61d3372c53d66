"""A computation is compiled once for this machine and loaded from then on, or runs eagerly."""

import pytest
import torch

from embodied_kv.runtime import compiled
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler, trace

WIDTH = 32


class Work:
    """x <- tanh(x w) of its own memory, and a count of its steps."""

    def __init__(self, width=WIDTH):
        self.x, self.count = torch.linspace(-1, 1, width)[None], torch.zeros(1, dtype=torch.int64)
        self.w = torch.eye(width).roll(1, 0)
        self.buffers = Buffers([Buffer('x', self.x), Buffer('count', self.count)])

    def __call__(self):
        self.x.copy_(torch.tanh(self.x @ self.w))
        self.count.add_(1)


@pytest.fixture
def said():
    return []


@pytest.fixture
def compiler(tmp_path, said):
    return Compiler(say=said.append, folder=tmp_path / 'kept')


def key(work, threads=1):
    return trace(work, work.buffers).digest(threads)


@torch.inference_mode()
def test_it_equals_the_function_over_what_its_memory_holds_and_is_loaded_the_next_time(
    compiler, said, tmp_path
):
    work, same = Work(), Work()
    run = compiler.compile('work', work, work.buffers)
    assert torch.equal(work.x, same.x) and not work.count, 'compiling leaves no trace in memory'
    for _ in range(3):
        run()
        same()
        torch.testing.assert_close(work.x, same.x, atol=1e-6, rtol=0)
    assert work.count == 3
    work.w.mul_(0.5)
    same.w.mul_(0.5)
    run()
    same()
    torch.testing.assert_close(work.x, same.x, atol=1e-6, rtol=0)
    assert (compiler.made, list(compiler.packages)) == (
        1,
        ['work'],
    ) and 'compiling work, once' in said[0]
    again, other = Compiler(say=said.append, folder=tmp_path / 'kept'), Work()
    said.clear()
    run = again.compile('work', other, other.buffers)
    run()
    assert (again.made, again.packages, said) == (0, compiler.packages, []) and other.count == 1


def test_a_key_tells_operations_layouts_and_threads_apart():
    class Other(Work):
        def __call__(self):
            self.x.copy_(torch.sigmoid(self.x @ self.w))

    works = Work(), Work(2 * WIDTH), Other()
    keys = {key(work) for work in works} | {key(Work(), threads=2)}
    assert len(keys) == 4 and key(Work()) == key(Work())


@pytest.mark.parametrize('lacks', ['avx512_bf16', 'amx_bf16', 'sve2'])
def test_a_key_tells_processors_apart_by_what_they_can(monkeypatch, lacks):
    flags = dict(avx2=True, cpu_name='any', l2_cache_size=1) | {lacks: True}
    keys = []
    for now in (flags, flags | {lacks: False}, flags | dict(cpu_name='other')):
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda now=now: now)
        keys.append(key(Work()))
    assert keys[0] != keys[1] and keys[0] == keys[2]


def test_without_a_compiler_it_is_eager_and_says_why(compiler, said, monkeypatch):
    def none(*_, **__):
        raise RuntimeError('no C++ compiler\nfound')

    monkeypatch.setattr(compiled, '_build', none)
    work = Work()
    assert compiler.compile('work', work, work.buffers) is None
    assert said[-1] == 'work is not compiled and runs eagerly: no C++ compiler'


def test_where_the_first_ones_fail_no_other_is_tried(compiler, said, monkeypatch):
    tried = []

    def none(*_, **__):
        tried.append(1)
        raise RuntimeError('cannot find -lcuda')

    monkeypatch.setattr(compiled, '_build', none)
    works = [Work(width) for width in (8, 16, 24, 32)]
    assert [compiler.compile('work', work, work.buffers) for work in works] == [None] * 4
    assert len(tried) == compiled.TRIES
    assert said[-1] == 'nothing is compiled, as the first 2 could not be: cannot find -lcuda'


def test_one_that_fails_among_others_is_alone(compiler, monkeypatch):
    build, first = compiled._build, Work(8)
    assert compiler.compile('first', first, first.buffers) is not None
    monkeypatch.setattr(compiled, '_build', lambda *_: 1 / 0)
    for width in (16, 24, 32):
        work = Work(width)
        assert compiler.compile('work', work, work.buffers) is None
    monkeypatch.setattr(compiled, '_build', build)
    assert compiler.compile('again', first, first.buffers) is not None


def test_what_cannot_be_traced_is_eager_and_says_why(compiler, said):
    class Odd(Work):
        def __call__(self):
            raise NotImplementedError('no tracer knows it')

    work = Odd()
    assert compiler.compile('work', work, work.buffers) is None
    assert said == ['work is not compiled and runs eagerly: no tracer knows it']


def test_a_file_that_cannot_be_loaded_is_dropped_and_said(compiler, said, tmp_path):
    work = Work()
    path = tmp_path / 'kept' / f'{key(work)}.pt2'
    path.parent.mkdir()
    path.write_bytes(b'half a package')
    assert compiler.compile('work', work, work.buffers) is None
    assert not path.exists() and 'runs eagerly' in said[-1]
