"""Copies between device and host that do not stop the thread that asks for them."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_kv.runtime.buffer import describe
from embodied_kv.runtime.stream import Event, Stream

CPU = torch.device('cpu')


@torch.inference_mode()
def copy_async(source: Tensor, target: Tensor, stream: Stream) -> Event:
    """Copies the bytes on `stream`, after all work that is launched already; done at the event.

    Until then nobody writes the source or uses the target: a thread calls `Event.wait`, a stream
    `Stream.wait`. On a CPU the copy is done on return.

    Raises ValueError if shape or dtype differ, if neither tensor is on the stream's device or one
    is on another device, and for a host tensor that is not pinned: that copy would be synchronous.
    """
    _check(source, target, stream)
    stream.wait(Stream.current(stream.device).record())
    with stream.use():
        target.copy_(source, non_blocking=True)
    for tensor in (source, target):
        if tensor.is_cuda:  # who drops it before the event leaves its memory to the copy
            tensor.record_stream(stream.cuda)
    return stream.record()


def _check(source: Tensor, target: Tensor, stream: Stream) -> None:
    if (source.dtype, source.shape) != (target.dtype, target.shape):
        raise ValueError(f'cannot copy {describe(source)} to {describe(target)}')
    here, devices = stream.device, {source.device, target.device}
    if here not in devices or not devices <= {here, CPU}:
        raise ValueError(f'a stream of {here} cannot copy from {source.device} to {target.device}')
    if here != CPU and not all(t.is_cuda or t.is_pinned() for t in (source, target)):
        raise ValueError('the host side of a copy must be pinned: make it by host_buffer')
