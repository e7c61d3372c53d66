"""A computation never writes memory that it neither declares nor allocates."""

import pytest
import torch
from captures import capture as captured
from captures import watched
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.common.declared_writes import UndeclaredWriteError
from embodied_kv.runtime.buffer import Buffer


def capture(fn, *buffers):
    return captured(watched(), 'writes', fn, buffers)


WRITES = {
    'fill': lambda t: t.fill_(1),
    'copy': lambda t: t.copy_(torch.ones(4)),
    'a part': lambda t: t[1:3].add_(1),
    'by index': lambda t: t.__setitem__(torch.tensor([0, 2]), 1.0),
    'out': lambda t: torch.add(t, 1, out=t),
    'one of a list': lambda t: torch._foreach_add_([torch.zeros(4), t], 1.0),
    'transposed': lambda t: t.view(2, 2).t().mul_(2).add_(1),
}


@pytest.mark.parametrize('write', WRITES.values(), ids=WRITES.keys())
def test_a_write_needs_a_declaration(write):
    x, other = Buffer('x', torch.zeros((4,), dtype=torch.float32)), torch.zeros(4)

    def run(target):
        write(target)

    capture(lambda: run(x.tensor), x).replay()
    assert x.tensor.any()
    with pytest.raises(UndeclaredWriteError, match='must write a declared buffer .*; declare it'):
        capture(lambda: run(other), x)
    assert not other.any()


def test_memory_that_the_computation_makes_is_its_own():
    x = Buffer('x', torch.zeros((4,), dtype=torch.float32))

    def run():
        scratch = torch.empty(8).zero_()
        scratch[2:6] += 1
        stacked = torch.stack([scratch, scratch])
        stacked.mul_(torch.tensor([[2.0], [3.0]]))
        x.write(stacked[1, 2:6])

    capture(run, x).replay()
    assert x.tensor.tolist() == [3] * 4


def test_memory_that_is_only_read_needs_no_declaration():
    x, weight = Buffer('x', torch.zeros((4,), dtype=torch.float32)), torch.ones(4)
    capture(lambda: x.write(weight), x).replay()
    assert x.tensor.tolist() == [1] * 4


@settings(deadline=None, max_examples=60)
@given(begin=st.integers(0, 7), count=st.integers(1, 8), stride=st.integers(1, 3))
def test_a_write_is_declared_if_and_only_if_it_lies_within_the_buffer(begin, count, stride):
    whole = torch.zeros(32)
    declared = Buffer('part', whole[8:16])
    written = whole[6 + begin :][: count * stride : stride]
    places = range(6 + begin, 6 + begin + count * stride, stride)
    inside = places[0] >= 8 and places[-1] < 16

    def run():
        written.fill_(1)

    if inside:
        capture(run, declared).replay()
        assert whole.sum() == count
    else:
        with pytest.raises(UndeclaredWriteError):
            capture(run, declared)
        assert whole.sum() == 0
