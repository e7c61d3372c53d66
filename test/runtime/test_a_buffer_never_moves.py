"""A buffer is written in place, and rebinding it is detected."""

import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.runtime.buffer import Buffer, BufferMovedError

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.complex64,
]


def random_bytes(shape, dtype, seed):
    """Return a tensor of random bytes, which may be infinities and NaN of every kind."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.empty(shape, dtype=dtype).nbytes
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def plain_bytes(buffer):
    return buffer.tensor.view(-1).view(torch.uint8).numpy().tobytes()


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
)
def test_write_then_read_equals_the_bytes_written(shape, dtype, seed):
    source = random_bytes(shape, dtype, seed)
    buffer, twin = Buffer('x', torch.zeros(shape, dtype=dtype)), Buffer('twin', source.clone())
    address = buffer.address
    buffer.write(source)
    assert plain_bytes(buffer) == plain_bytes(twin)
    assert buffer.address == buffer.tensor.data_ptr() == address
    assert buffer.bytes == len(plain_bytes(buffer)) == source.nbytes


def test_memory_made_for_inference_is_written_from_anywhere():
    with torch.inference_mode():
        buffer = Buffer('x', torch.zeros(3))
    buffer.write(torch.ones(3))
    assert buffer.tensor.tolist() == [1, 1, 1]


@pytest.mark.parametrize('wrong', [torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3).double()])
def test_another_shape_or_dtype_is_refused_and_nothing_written(wrong):
    buffer = Buffer('goal', torch.ones(2, 3))
    with pytest.raises(
        ValueError, match=re.escape("'goal' must be written with float32 [2, 3] (got float")
    ):
        buffer.write(wrong)
    assert buffer.tensor.tolist() == [[1, 1, 1]] * 2


def rebind(tensor):
    tensor.data = tensor.clone()


@pytest.mark.parametrize(
    'change', [rebind, lambda t: t.resize_(100), lambda t: t.resize_(1), lambda t: t.t_()]
)
def test_a_changed_tensor_is_found_out(change):
    buffer = Buffer('goal', torch.zeros(2, 3))
    buffer.require_unmoved()
    change(buffer.tensor)
    with pytest.raises(BufferMovedError, match=r"'goal' must stay float32 \[2, 3\] at 0x"):
        buffer.require_unmoved()
    with pytest.raises(BufferMovedError, match='write into it instead'):
        buffer.write(torch.zeros(2, 3))


def test_a_buffer_cannot_be_given_another_tensor():
    buffer = Buffer('x', torch.zeros(1))
    with pytest.raises(FrozenInstanceError):
        buffer.tensor = torch.ones(1)


def test_what_has_no_name_or_no_range_of_bytes_is_refused():
    with pytest.raises(ValueError, match='must not be empty'):
        Buffer('', torch.zeros(1))
    with pytest.raises(ValueError, match="'x' must be contiguous"):
        Buffer('x', torch.zeros(2, 3).t())
