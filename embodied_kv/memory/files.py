"""Files of KV: one safetensors file per unit and version, written once and never changed.

A file holds one tensor `kv` [layers, 2, kv_heads, tokens, head_dim], so that k and v of a layer
are one read. It is written under a temporary name, synced, then renamed. Its KvEntry is stored in
the database, and a reader trusts only the entry: size, header and each layer's bytes are compared
before they are returned. A layer is read, not mapped, so that the loading thread does the copy,
and a file that is truncated during a read raises an error instead of a signal.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.errors import ErrorCode
from embodied_kv.kv import transfer
from embodied_kv.memory.segment import RobotMemoryError

log = logging.getLogger(__name__)

NAME = re.compile(r'(\d{1,18})\.safetensors')
DAMAGED = 'is damaged ({}); forget this unit, its KV is computed again from the text'
FREE = 'free disk space, or delete *.safetensors in this folder: that KV is computed again'
REMEDIES = {
    **storage.REMEDIES,
    **dict.fromkeys(storage.FULL, FREE),
    errno.EEXIST: 'choose a folder',
}


class DiskFullError(RobotMemoryError):
    """A change that was undone because the disk is full."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class KvEntry:
    """The verified properties of a file."""

    number: int  # the name of the file
    shape: tuple[int, ...]  # of the tensor
    dtype: str  # its name in torch
    offset: int  # bytes before the tensor
    checksums: tuple[int, ...]  # CRC-32 of the header, then of each layer

    def __post_init__(self) -> None:
        integers = (self.number, self.offset, *self.shape, *self.checksums)
        if not all(type(n) is int and 0 <= n < 2**48 for n in integers):
            raise ValueError(f'entry must have integers in [0, 2**48) (got {integers})')
        if len(self.shape) != 5 or self.shape[1] != 2 or len(self.checksums) != 1 + self.layers:
            raise ValueError(
                'shape must be [layers, 2, kv_heads, tokens, head_dim] with a checksum per layer '
                f'(got {self.shape} and {len(self.checksums)} checksums)'
            )
        if not isinstance(getattr(torch, str(self.dtype), None), torch.dtype):
            raise ValueError(f'dtype must be a torch dtype (got {self.dtype!r})')

    @property
    def layers(self) -> int:
        return self.shape[0]

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def layer_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.torch_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Return the size of the tensor."""
        return self.layers * self.layer_bytes

    @property
    def file_bytes(self) -> int:
        return self.offset + self.bytes


class KvFiles:
    """The files of a folder, by number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        return self.folder / f'{number}.safetensors'

    def write(self, number: int, kv: Tensor) -> KvEntry:
        """Write kv [layers, 2, kv_heads, tokens, head_dim] from the host; call `sync` after it."""
        data = safetensors.torch.save({'kv': kv})
        offset = 8 + int.from_bytes(data[:8], 'little')
        path = self.path(number)
        with explained(path, 'written'), storage.replaced(path) as new:
            storage.write(new, data)
        layers = memoryview(data)[offset:]
        size = len(layers) // len(kv)
        parts = [layers[i * size : (i + 1) * size] for i in range(len(kv))]
        return KvEntry(
            number,
            tuple(kv.shape),
            str(kv.dtype).removeprefix('torch.'),
            offset,
            (zlib.crc32(data[:offset]), *map(zlib.crc32, parts)),
        )

    def sync(self) -> None:
        """Wait until the file names are on the disk."""
        with explained(self.folder, 'synced'):
            storage.sync(self.folder)

    def read(self, entry: KvEntry, layer: int) -> tuple[Tensor, Tensor]:
        """Return k and v of a layer, [kv_heads, tokens, head_dim], in new (pinned) host memory.

        Raises RobotMemoryError for a file that does not match the entry.
        """
        path = self.path(entry.number)
        with _open(path) as descriptor:
            header, own = bytearray(entry.offset), entry.checksums[1 + layer]
            at = entry.offset + layer * entry.layer_bytes
            try:
                size, whole = os.fstat(descriptor).st_size, entry.file_bytes
                if size != whole:
                    raise transfer.DamagedFileError(f'{size} of {whole} bytes')
                transfer.read(descriptor, header, 0)
                transfer.compare(header, entry.checksums[0], 'its header')
                kv = transfer.read_tensor(  # [2, kv_heads, tokens, head_dim]
                    descriptor, at, entry.shape[1:], entry.torch_dtype, own, f'layer {layer}'
                )
            except transfer.DamagedFileError as fault:
                raise RobotMemoryError(
                    f'{path} ' + DAMAGED.format(fault), ErrorCode.DAMAGED
                ) from fault
            with suppress(OSError):
                os.utime(descriptor)  # read by `used` after a restart
        return kv[0], kv[1]

    def used(self) -> dict[int, int]:
        """Return the time (ns) at which each file was last read or written, by number."""
        found = {}
        with explained(self.folder, 'listed'), os.scandir(self.folder) as items:
            for item in items:
                if match := NAME.fullmatch(item.name):
                    found[int(match[1])] = item.stat(follow_symlinks=False).st_mtime_ns
        return found

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove files without a record; `sweep` removes those that cannot be removed now."""
        for number in numbers:
            try:
                self.path(number).unlink(missing_ok=True)
            except OSError as error:
                log.warning(
                    'KV file %s could not be removed; the next start removes it (reason: %s)',
                    self.path(number),
                    error.strerror,
                )

    def sweep(self, used: Set[int]) -> int:
        """Remove files without a record, as a crash leaves them, and return their number.

        No writer may be active.
        """
        swept = 0
        with explained(self.folder, 'swept'):
            for path in list(self.folder.iterdir()):
                name = path.name.removeprefix('.').removesuffix(storage.TEMPORARY)
                match = NAME.fullmatch(name)
                if match and not (path.name == name and int(match[1]) in used):
                    path.unlink()
                    swept += 1
        return swept


def explained(path: Path, done: str) -> AbstractContextManager[None]:
    """Turn an OSError into a one-line RobotMemoryError with a remedy."""
    return storage.explained(path, done, RobotMemoryError, REMEDIES)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    """Open a regular file, never through a link."""
    with explained(path, 'read'):
        try:
            descriptor = storage.open_regular(path)
        except FileNotFoundError:
            raise RobotMemoryError(
                f'{path} does not exist; forget this unit, or retry', ErrorCode.DAMAGED
            ) from None
        except storage.IrregularFileError as error:
            raise RobotMemoryError(f'{path} {error}; remove it', ErrorCode.DAMAGED) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)
