"""How KV moves between the device, the host and the disk: one way for capsules and for memory.

Knows tensors, bytes, and files that are open. Does not know which copies there are, nor which of
them has to go. What comes from a file lies in host memory of its own, and is compared with its
checksum before anybody sees it. Host memory is pinned where there is CUDA: so it goes to the
device beside computation, and needs no other copy before. Pinned memory is costly to make and
comes in powers of two: tensors that come and go together share a block, and `held_bytes` says what
a block takes.

Checksums are CRC-32: they are there for accidents.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import local

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: the widest number


class Damaged(Exception):
    """A file does not hold what was written into it; the message says in what."""


def copy_to(tensor: Tensor, device: torch.device | str, wait: bool = True) -> Tensor:
    """The tensor on that device, in pinned memory if that is the host of a GPU.

    The tensor itself where it lies so already. wait: until it is there; without, what comes on the
    same stream finds it.
    """
    device = torch.device(device)
    if device.type != 'cpu' or not _pins():
        return tensor.to(device, non_blocking=not wait)
    if _is_pinned(tensor):
        return tensor
    return host_memory(tensor.shape, tensor.dtype).copy_(tensor)


def block_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of `one_block` that takes what `copy_to` makes of these on the host."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors if not _is_pinned(tensor))


def host_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Of the host, pinned where there is CUDA; with whatever lies there. See `one_block`."""
    part = None if _open.block is None else _open.block.take(math.prod(shape) * dtype.itemsize)
    if part is not None:
        return part.view(dtype).view(tuple(shape))
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=_pins())


@contextmanager
def one_block(size: int) -> Iterator[None]:
    """All that `host_memory` gives to this thread inside lies in one allocation of `size` bytes.

    It is made for the first that asks, and freed with the last tensor in it. Each tensor takes a
    multiple of ALIGNMENT; what does not fit any more has memory of its own.
    """
    before, _open.block = _open.block, _Block(size)
    try:
        yield
    finally:
        _open.block = before


def held_bytes(size: int) -> int:
    """Return the bytes of the host that an allocation of so many takes."""
    return 1 << (size - 1).bit_length() if size and _pins() else size


class _Block:
    """Host memory that is given away from its beginning on."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._memory: Tensor | None = None

    def take(self, size: int) -> Tensor | None:
        """Return uint8 [size]; None where there is not so much left."""
        begin, end = self._used, self._used + size
        if end > self._size:
            return None
        if self._memory is None:
            self._memory = torch.empty(self._size, dtype=torch.uint8, pin_memory=_pins())
        self._used = _aligned(end)
        return self._memory[begin:end]


class _Open(local):
    """What a thread is inside of."""

    block: _Block | None = None


_open = _Open()


def plain_bytes(tensor: Tensor) -> np.ndarray:
    """[bytes] of a tensor, in C order: shared where it lies so on the host, else copied.

    Raises RuntimeError or TypeError for one that has no plain bytes.
    """
    if tensor.is_quantized:
        raise TypeError('its scale would be lost')
    host = tensor.detach().resolve_conj().resolve_neg().cpu()
    if host.itemsize == 1:  # so can be copied what has no copy of its own, such as int4
        host = host.view(torch.uint8)
    host = host.contiguous()
    # One axis of stride 1: where an axis holds one number or none, its stride may be any.
    return host.as_strided((host.numel(),), (1,)).view(torch.uint8).numpy()


def read(descriptor: int, data: bytearray | memoryview, offset: int) -> None:
    """Fills `data` from there on. Raises Damaged where the file ends before."""
    data = memoryview(data)
    while data:  # one read moves 2 GB at most
        count = os.preadv(descriptor, [data], offset)
        if not count:
            raise Damaged('it was cut short while it was read')
        data, offset = data[count:], offset + count


def read_tensor(
    descriptor: int,
    offset: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    checksum: int,
    what: str,
) -> Tensor:
    """What lies there, in host memory of its own.

    Raises Damaged where it is not what `checksum` was made from, RuntimeError where there is not
    so much memory.
    """
    tensor = host_memory(shape, dtype)
    data = memoryview(tensor.view(-1).view(torch.uint8).numpy())
    read(descriptor, data, offset)
    compare(data, checksum, what)
    return tensor


def compare(data: bytes | bytearray | memoryview, checksum: int, what: str) -> None:
    """Raises Damaged."""
    if zlib.crc32(data) != checksum:
        raise Damaged(f'{what} does not have its checksum')


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == 'cpu' and tensor.is_pinned()


@cache
def _pins() -> bool:
    return torch.cuda.is_available()
