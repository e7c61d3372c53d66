"""KV on the medium: one safetensors file per unit and version, written once and never changed.

Knows files and tensors. Does not know segments, nor which file is in use: that is the records'.

A file holds one tensor `kv` [layers, 2, kv_heads, tokens, head_dim], so that k and v of a layer
lie side by side and are one read. It is written under a temporary name, synced, then renamed.
Whoever wrote it keeps a KvEntry apart from it, and a reader trusts the entry alone: size, header
and each layer's bytes are compared before they are handed out. A layer is read, not mapped: that
is the copy which a loading thread is there for, and a file cut short under a reader is an error
and not a signal.
"""

from __future__ import annotations

import errno
import logging
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
from embodied_kv.kv import moves
from embodied_kv.memory.segment import MemoryFault

log = logging.getLogger(__name__)

NAME = re.compile(r'(\d{1,18})\.safetensors')
DAMAGED = 'is damaged ({}): forget this unit, its KV is computed anew from the text'
FREE = 'free some space, or remove *.safetensors of this folder: that KV is computed again'
REMEDIES = {
    **storage.REMEDIES,
    **dict.fromkeys(storage.FULL, FREE),
    errno.EEXIST: 'choose a folder',
}


class DiskFull(MemoryFault):
    """The database had no room for a change, which is undone."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class KvEntry:
    """What is true of a file. shape: of its tensor. checksums: of the header, then per layer."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    offset: int
    checksums: tuple[int, ...]

    def __post_init__(self) -> None:
        integers = (self.number, self.offset, *self.shape, *self.checksums)
        if not all(type(n) is int and 0 <= n < 2**48 for n in integers):
            raise ValueError(f'{integers} are not all numbers of a file')
        if len(self.shape) != 5 or self.shape[1] != 2:
            raise ValueError(f'{self.shape} is no shape of KV')
        if len(self.checksums) != 1 + self.layers:
            raise ValueError(f'{len(self.checksums)} checksums for {self.layers} layers')
        if not isinstance(getattr(torch, str(self.dtype), None), torch.dtype):
            raise ValueError(f'{self.dtype!r} is no dtype')

    @property
    def layers(self) -> int:
        return self.shape[0]

    @property
    def tokens(self) -> int:
        return self.shape[3]

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def layer_bytes(self) -> int:
        _, two, heads, tokens, dim = self.shape
        return two * heads * tokens * dim * self.torch_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Of the tensor."""
        return self.layers * self.layer_bytes

    @property
    def file_bytes(self) -> int:
        return self.offset + self.bytes


class KvFiles:
    """The files of one folder, by their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        return self.folder / f'{number}.safetensors'

    def write(self, number: int, kv: Tensor) -> KvEntry:
        """kv [layers, 2, kv_heads, tokens, head_dim], on the host. `sync` has to follow."""
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
        """Waits until the names are on the medium."""
        with explained(self.folder, 'synced'):
            storage.sync(self.folder)

    def read(self, entry: KvEntry, layer: int) -> tuple[Tensor, Tensor]:
        """The k and v of a layer, [kv_heads, tokens, head_dim], in host memory of their own.

        Pinned where there is CUDA. Raises MemoryFault for a file that is not the entry's.
        """
        path = self.path(entry.number)
        with _open(path) as descriptor:
            size, whole = os.fstat(descriptor).st_size, entry.file_bytes
            if size != whole:
                raise MemoryFault(
                    f'{path} ' + DAMAGED.format(f'{size} of {whole} bytes'), ErrorCode.DAMAGED
                )
            header, own = bytearray(entry.offset), entry.checksums[1 + layer]
            at = entry.offset + layer * entry.layer_bytes
            try:
                moves.read(descriptor, header, 0)
                moves.compare(header, entry.checksums[0], 'its header')
                kv = moves.read_tensor(  # [2, kv_heads, tokens, head_dim]
                    descriptor, at, entry.shape[1:], entry.torch_dtype, own, f'layer {layer}'
                )
            except moves.Damaged as fault:
                raise MemoryFault(f'{path} ' + DAMAGED.format(fault), ErrorCode.DAMAGED) from fault
            with suppress(OSError):
                os.utime(descriptor)  # `used` reads it after a restart
        return kv[0], kv[1]

    def used(self) -> dict[int, int]:
        """Return when each file was last read or written, ns, by its number."""
        found = {}
        with explained(self.folder, 'listed'), os.scandir(self.folder) as items:
            for item in items:
                if match := NAME.fullmatch(item.name):
                    found[int(match[1])] = item.stat(follow_symlinks=False).st_mtime_ns
        return found

    def remove(self, numbers: Iterable[int]) -> None:
        """Of which no record is left; what cannot be removed now is left to `sweep`."""
        for number in numbers:
            try:
                self.path(number).unlink(missing_ok=True)
            except OSError as error:
                log.warning('%s stays until it is swept: %s', self.path(number), error.strerror)

    def sweep(self, used: Set[int]) -> int:
        """Removes what no record names, as a crash leaves it -> how many. No writer is at work."""
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
    """Turns an OSError into a MemoryFault in one line, with what to do."""
    return storage.explained(path, done, MemoryFault, REMEDIES)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    """A regular file, never through a link."""
    with explained(path, 'read'):
        try:
            descriptor = storage.open_regular(path)
        except FileNotFoundError:
            raise MemoryFault(
                f'{path} is gone: forget this unit, or ask again', ErrorCode.DAMAGED
            ) from None
        except storage.IrregularFileError as error:
            raise MemoryFault(f'{path} {error}: remove it', ErrorCode.DAMAGED) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)
