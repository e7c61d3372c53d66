"""Each name once, and nothing joins later."""

import pytest
import torch

from embodied_kv.runtime.buffer import Buffer, BufferMovedError, Buffers


def zeros(name, count=1):
    return Buffer(name, torch.zeros((count,), dtype=torch.float32))


def test_iteration_keeps_the_order():
    given = [zeros('b', 3), zeros('a', 2)]
    buffers = Buffers(given)
    assert list(buffers) == given
    assert len(buffers) == 2
    assert buffers['a'] is given[1]
    assert 'a' in buffers and 'c' not in buffers


def test_a_name_twice_is_refused():
    with pytest.raises(ValueError, match="must be unique .got 'a' twice."):
        Buffers([zeros('a'), zeros('b'), zeros('a')])


def test_a_missing_name_is_told_with_those_that_there_are():
    with pytest.raises(LookupError, match="must be one of a, b .got 'c'."):
        Buffers([zeros('a'), zeros('b')])['c']


def test_one_that_moved_is_found_out():
    buffers = Buffers([zeros('a'), zeros('b')])
    buffers.require_unmoved()
    buffers['b'].tensor.resize_(100)
    with pytest.raises(BufferMovedError, match="'b'"):
        buffers.require_unmoved()
