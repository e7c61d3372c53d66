"""Transfers of KV between the device, the host and the disk, for capsules and for memory.

Host memory is pinned if there is CUDA, so copies to the device overlap with computation. Pinned
memory is slow to allocate and comes in powers of two: tensors with a common lifetime share a
block, and `held_bytes` returns the size of a block. The CRC-32 of data from a file is checked
before the data is returned, to detect accidental damage.
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

ALIGNMENT = 16  # bytes, of the widest number


class DamagedFileError(Exception):
    """A file does not hold what was written to it; the message names the part."""


def copy_to(tensor: Tensor, device: torch.device | str, wait: bool = True) -> Tensor:
    """Return the tensor on a device, in pinned memory if that is the host of a GPU.

    Returns the tensor itself if it is there already. wait: until the copy is complete; otherwise
    only work on the same stream may read it.
    """
    device = torch.device(device)
    if device.type != 'cpu' or not _pins():
        return tensor.to(device, non_blocking=not wait)
    if _is_pinned(tensor):
        return tensor
    return host_memory(tensor.shape, tensor.dtype).copy_(tensor)


def block_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the `one_block` for the host copies of these tensors by `copy_to`."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors if not _is_pinned(tensor))


def host_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return uninitialised host memory, pinned if there is CUDA. See `one_block`."""
    part = None if _open.block is None else _open.block.take(math.prod(shape) * dtype.itemsize)
    if part is not None:
        return part.view(dtype).view(tuple(shape))
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=_pins())


@contextmanager
def one_block(size: int) -> Iterator[None]:
    """Let `host_memory` of this thread allocate from one block of `size` bytes in the context.

    The block is allocated at the first use and freed with the last tensor in it. Each tensor takes
    a multiple of ALIGNMENT; a tensor that does not fit is allocated separately.
    """
    before, _open.block = _open.block, _Block(size)
    try:
        yield
    finally:
        _open.block = before


def held_bytes(size: int) -> int:
    """Return the bytes of host memory that an allocation of `size` bytes takes."""
    return 1 << (size - 1).bit_length() if size and _pins() else size


class _Block:
    """Host memory that is allocated from its beginning on."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._memory: Tensor | None = None

    def take(self, size: int) -> Tensor | None:
        """Return uint8 [size]; None if less is left."""
        begin, end = self._used, self._used + size
        if end > self._size:
            return None
        if self._memory is None:
            self._memory = torch.empty(self._size, dtype=torch.uint8, pin_memory=_pins())
        self._used = _aligned(end)
        return self._memory[begin:end]


class _Open(local):
    block: _Block | None = None


_open = _Open()


def plain_bytes(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a tensor in C order as an array, shared if possible, else copied.

    Raises RuntimeError or TypeError for a tensor without plain bytes.
    """
    if tensor.is_quantized:
        raise TypeError('a quantized tensor has no plain bytes, because its scale would be lost')
    host = tensor.detach().resolve_conj().resolve_neg().cpu()
    if host.itemsize == 1:  # some types of one byte, such as int4, cannot be copied as they are
        host = host.view(torch.uint8)
    host = host.contiguous()
    # One axis of stride 1, because an axis with at most one number may have any stride.
    return host.as_strided((host.numel(),), (1,)).view(torch.uint8).numpy()


def read(descriptor: int, data: bytearray | memoryview, offset: int) -> None:
    """Fill `data` from an offset of a file. Raises DamagedFileError if the file ends before."""
    data = memoryview(data)
    while data:  # one read returns at most 2 GB
        count = os.preadv(descriptor, [data], offset)
        if not count:
            raise DamagedFileError('it was cut short while it was read')
        data, offset = data[count:], offset + count


def read_tensor(
    descriptor: int,
    offset: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    checksum: int,
    what: str,
) -> Tensor:
    """Return a tensor from a file, in new host memory.

    Raises DamagedFileError if its checksum differs, RuntimeError if there is too little memory.
    """
    tensor = host_memory(shape, dtype)
    data = tensor.view(-1).view(torch.uint8).numpy().data
    read(descriptor, data, offset)
    compare(data, checksum, what)
    return tensor


def compare(data: bytes | bytearray | memoryview, checksum: int, what: str) -> None:
    """Raise DamagedFileError if the checksum of `data` differs."""
    if zlib.crc32(data) != checksum:
        raise DamagedFileError(f'{what} does not have its checksum')


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == 'cpu' and tensor.is_pinned()


@cache
def _pins() -> bool:
    return torch.cuda.is_available()
