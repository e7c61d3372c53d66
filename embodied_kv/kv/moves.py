"""How KV moves between the device, the host and the disk: one way for capsules and for memory.

Knows tensors, bytes, and files that are open. Does not know which copies there are, nor which of
them has to go. What comes from a file lies in host memory of its own, and is compared with its
checksum before anybody sees it. Host memory is pinned where there is CUDA: so it goes to the
device beside computation, and needs no other copy before.

Checksums are CRC-32: they are there for accidents.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor


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
    if tensor.device.type == 'cpu' and tensor.is_pinned():
        return tensor
    return host_memory(tensor.shape, tensor.dtype).copy_(tensor)


def host_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Of the host, pinned where there is CUDA; with whatever lies there."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=_pins())


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


def compare(data: bytes | memoryview, checksum: int, what: str) -> None:
    """Raises Damaged."""
    if zlib.crc32(data) != checksum:
        raise Damaged(f'{what} does not have its checksum')


@cache
def _pins() -> bool:
    return torch.cuda.is_available()
