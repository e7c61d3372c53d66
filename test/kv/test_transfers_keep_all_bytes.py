"""Tensors from a file have the same bytes in new memory; a damaged file is reported as such."""

import os
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.kv import transfer

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3)


def tensor(shape, dtype):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


@given(SHAPES, st.sampled_from(DTYPES), st.integers(0, 9))
def test_what_is_read_is_what_was_written(shape, dtype, offset):
    made = tensor(shape, dtype)
    data = transfer.plain_bytes(made).tobytes()
    descriptor = os.memfd_create('kv')
    try:
        os.pwrite(descriptor, b'x' * offset + data, 0)
        read = transfer.read_tensor(descriptor, offset, shape, dtype, zlib.crc32(data), 'it')
        assert read.dtype == dtype and torch.equal(read, made)
        if data:
            with pytest.raises(transfer.DamagedFileError, match='it does not have its checksum'):
                transfer.read_tensor(descriptor, offset, shape, dtype, zlib.crc32(data) ^ 1, 'it')
            os.truncate(descriptor, offset + len(data) - 1)
            with pytest.raises(transfer.DamagedFileError, match='cut short'):
                transfer.read_tensor(descriptor, offset, shape, dtype, zlib.crc32(data), 'it')
    finally:
        os.close(descriptor)


def test_memory_of_the_host_is_pinned_where_there_is_cuda():
    made = transfer.host_memory((2, 3), torch.bfloat16)
    assert made.is_pinned() == torch.cuda.is_available()
    assert (made.shape, made.dtype, made.device.type) == ((2, 3), torch.bfloat16, 'cpu')


def test_what_lies_there_already_is_not_copied():
    made = transfer.host_memory((2, 3), torch.float32).zero_()
    assert transfer.copy_to(made, 'cpu') is made


def test_a_transposed_tensor_has_its_bytes_in_order():
    made = tensor((2, 3), torch.float32)
    assert transfer.plain_bytes(made.t()).tobytes() == made.t().contiguous().numpy().tobytes()
