"""Bytes cross between device and host behind an event, in order with the work around them."""

import pytest
import torch

from embodied_kv.runtime.buffer import Buffer, host_buffer
from embodied_kv.runtime.stream import Stream
from embodied_kv.runtime.transfer import copy_async


def test_to_the_host_and_back_equals_the_bytes(device):
    live = Buffer('live', torch.randn(4, 8).to(device))
    parked, digest = host_buffer('parked', live.tensor), live.digest()
    stream = Stream.on(device)
    copy_async(live.tensor, parked.tensor, stream).wait()
    assert parked.digest() == digest
    live.tensor.zero_()
    done = copy_async(parked.tensor, live.tensor, stream)
    Stream.current(device).wait(done)
    assert live.digest() == digest
    stream.synchronize()
    assert done.done


def test_a_part_is_copied_alone(device):
    live = Buffer('live', torch.arange(6.0).to(device))
    parked = host_buffer('parked', live.tensor)
    copy_async(live.tensor[2:4], parked.tensor[2:4], Stream.on(device)).wait()
    assert parked.tensor.tolist() == [0, 0, 2, 3, 0, 0]


def test_on_a_cpu_an_event_is_done_when_it_is_recorded():
    stream = Stream.on('cpu')
    event = stream.record()
    assert event.done
    event.wait()
    stream.wait(event)
    stream.synchronize()
    assert stream.device == Stream.current('cpu').device == torch.device('cpu')


def test_on_a_cpu_a_copy_is_done_on_return():
    target = torch.zeros(3)
    with Stream.on('cpu').use():
        assert copy_async(torch.ones(3), target, Stream.on('cpu')).done
    assert target.tolist() == [1, 1, 1]


def test_on_cuda_a_copy_waits_for_the_work_before_it_and_nobody_waits_for_the_copy(cuda):
    live = Buffer('live', torch.ones(1 << 20, device=cuda))
    parked, stream = host_buffer('parked', live.tensor), Stream.on(cuda)
    torch.cuda._sleep(200_000_000)  # cycles: some tenths of a second
    live.tensor.fill_(7)
    event = copy_async(live.tensor, parked.tensor, stream)
    assert not event.done
    event.wait()
    assert event.done
    assert (parked.tensor == 7).all()


def test_another_shape_or_dtype_is_refused():
    stream = Stream.on('cpu')
    with pytest.raises(ValueError, match=r'cannot copy float32 \[3\] to float32 \[4\]'):
        copy_async(torch.zeros(3), torch.zeros(4), stream)
    with pytest.raises(ValueError, match=r'cannot copy float32 \[3\] to int32 \[3\]'):
        copy_async(torch.zeros(3), torch.zeros(3, dtype=torch.int32), stream)


def test_a_stream_of_another_device_is_refused():
    with pytest.raises(ValueError, match='a stream of cpu cannot copy from meta to cpu'):
        copy_async(torch.zeros(3, device='meta'), torch.zeros(3), Stream.on('cpu'))


def test_on_cuda_memory_that_is_not_pinned_is_refused(cuda):
    live, stream = torch.zeros(3, device=cuda), Stream.on(cuda)
    with pytest.raises(ValueError, match='must be pinned: make it by host_buffer'):
        copy_async(live, torch.zeros(3), stream)
    with pytest.raises(ValueError, match='cannot copy from cpu to cpu'):
        copy_async(torch.zeros(3), torch.zeros(3), stream)
