"""A set of buffers keeps its order, has unique names, and detects a moved buffer."""

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


def test_error_of_a_missing_name_lists_the_known_names():
    with pytest.raises(LookupError, match="must be one of a, b .got 'c'."):
        Buffers([zeros('a'), zeros('b')])['c']


def test_moved_buffer_is_detected():
    buffers = Buffers([zeros('a'), zeros('b')])
    buffers.require_unmoved()
    buffers['b'].tensor.resize_(100)
    with pytest.raises(BufferMovedError, match="'b'"):
        buffers.require_unmoved()
