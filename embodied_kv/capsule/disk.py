"""Capsules in a folder: they outlive the process, and each is whole or absent.

It knows files. It does not know what a capsule means, nor which to keep.

A capsule is one file, `NAME.safetensors`, written under a temporary name, synced, then renamed:
one rename replaces an older capsule of that name in one step, which a folder with two files could
not promise. A writer locks the folder, so whoever holds the lock may remove every temporary file:
its writer is dead. A file is read through one descriptor, never mapped: what was checked is what
is handed out, and a file cut short under a reader is an error and not a signal.

Needs Linux and a local file system (flock on a folder, O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.capsule.capsule import Capsule, CapsuleError
from embodied_kv.capsule.manifest import (
    DAMAGED,
    MAX_HEADER,
    Manifest,
    TensorEntry,
    describe,
    parse,
)
from embodied_kv.kv import moves

NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}')  # so no name leaves the folder
ENDING = '.safetensors'
REMEDIES = {
    **storage.REMEDIES,
    **dict.fromkeys(storage.FULL, 'drop capsules or free some space'),
    errno.EISDIR: 'move that folder away',
    errno.EEXIST: 'move it away',
}


class Disk:
    """The capsules in one folder, which is created where it does not exist.

    Any number of processes and threads may share a folder; saving is one at a time. Every method
    raises CapsuleError, in one line, that names the file and says what to do.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        with _explained(self.folder, 'opened'):
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                storage.sync(self.folder.parent)
            with storage.locked(self.folder, wait=False) as locked:
                if locked:
                    self._remove_leftovers()

    def save(self, capsule: Capsule) -> int:
        """Keeps it, and replaces any older one of its name. Returns the bytes of the file.

        When it returns, the capsule is on the medium. When it raises, the older one still stands;
        but where only the last sync failed, the new one does, and a power cut may take it back.
        """
        path = self._path(capsule.name)
        contents = {name: _bytes(capsule, name) for name in capsule.tensors}
        manifest = describe(capsule, {name: zlib.crc32(b) for name, b in contents.items()})
        header = manifest.header()
        with _explained(path, 'written'), storage.locked(self.folder):
            self._remove_leftovers()
            with storage.replaced(path) as new:
                storage.write(new, header, *(contents[entry.name] for entry in manifest.tensors))
            storage.sync(self.folder)
        return len(header) + manifest.bytes

    def load(self, name: str, fingerprint: str) -> Capsule:
        """The capsule, in host memory that is its own.

        fingerprint: of who asks. Where the capsule has another, no byte of its tensors is read.
        """
        path = self._path(name)
        with self._open(path) as stream:
            manifest = _read_manifest(stream, name)
            if manifest.fingerprint != fingerprint:
                raise CapsuleError(
                    f'was made by {manifest.fingerprint}, this is {fingerprint}: weights, dtype, '
                    'kernels, layout or config differ; start what made it, or make a new one'
                )
            tensors, at = {}, stream.tell()
            for entry in manifest.tensors:
                tensors[entry.name] = _read_tensor(stream, entry, at)
                at += entry.bytes
        return Capsule(
            name,
            manifest.boundary,
            manifest.fingerprint,
            tensors,
            manifest.facts,
            manifest.created,
        )

    def entry(self, name: str) -> Manifest:
        """What the file says of itself; its tensors are not read, so not checked either."""
        with self._open(self._path(name)) as stream:
            return _read_manifest(stream, name)

    def names(self) -> tuple[str, ...]:
        """Of all files that are called like capsules, sorted; some may turn out damaged."""
        with _explained(self.folder, 'listed'):
            files = sorted(os.listdir(self.folder))
        names = (file.removesuffix(ENDING) for file in files if file.endswith(ENDING))
        return tuple(name for name in names if NAME.fullmatch(name))

    def entries(self) -> tuple[Manifest, ...]:
        """Of every name whose file can be read; `entry` says what is wrong with another."""
        found = []
        for name in self.names():
            try:
                found.append(self.entry(name))
            except CapsuleError:
                continue
        return tuple(found)

    def drop(self, name: str) -> None:
        """Removes the file, whatever it holds."""
        path = self._path(name)
        with _explained(path, 'dropped'):
            try:
                path.unlink()
            except FileNotFoundError:
                raise self._absent(name) from None
            storage.sync(self.folder)

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise CapsuleError(
                f'{str(name)[:80]!r} cannot name a capsule: use 1 to 64 letters, digits, '
                'dots, _ and -, with no dot in front'
            )
        return self.folder / f'{name}{ENDING}'

    def _absent(self, name: str) -> CapsuleError:
        there = ', '.join(self.names()) or 'nothing'
        return CapsuleError(f'no capsule {name} in {self.folder}; there is {there}')

    def _remove_leftovers(self) -> None:
        """Under the lock alone: the writer of every temporary file is dead then."""
        for path in self.folder.glob(str(storage.temporary(Path(f'*{ENDING}')))):
            path.unlink()

    @contextmanager
    def _open(self, path: Path) -> Iterator[BinaryIO]:
        """A regular file, never through a link; puts its path before what is wrong with it."""
        with _explained(path, 'read'):
            try:
                descriptor = storage.open_regular(path)
            except FileNotFoundError:
                raise self._absent(path.name.removesuffix(ENDING)) from None
            except storage.Linked as error:
                raise CapsuleError(f'{path} {error}: drop it') from None
            except storage.Irregular as error:
                raise CapsuleError(f'{path} {error}: move it away') from None
            with os.fdopen(descriptor, 'rb', buffering=0) as stream:
                try:
                    yield stream
                except CapsuleError as error:
                    raise CapsuleError(f'{path} {error}') from error


def _bytes(capsule: Capsule, name: str) -> np.ndarray:
    """As `plain_bytes`, of a tensor of the capsule."""
    tensor = capsule.tensors[name]
    try:
        return moves.plain_bytes(tensor)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CapsuleError(
            f'capsule {capsule.name}: {name} ({tensor.dtype}, {tensor.layout}, {tensor.device}) '
            f'has no plain bytes to keep: {reason}'
        ) from error


def _read(stream: BinaryIO, data: bytearray, offset: int) -> None:
    try:
        moves.read(stream.fileno(), data, offset)
    except moves.Damaged as fault:
        raise CapsuleError(DAMAGED.format(fault)) from fault


def _read_manifest(stream: BinaryIO, name: str) -> Manifest:
    """Leaves the stream at the first tensor. Nothing is allocated that the file does not hold."""
    size = os.fstat(stream.fileno()).st_size
    start = bytearray(min(size, 9))
    _read(stream, start, 0)
    length = 8 + int.from_bytes(start[:8], 'little')
    if len(start) == 9 and (start[8:] != b'{' or length > 8 + MAX_HEADER):
        raise CapsuleError('is not a capsule, or its start is damaged: drop it')
    if len(start) < 9 or length > size:
        raise CapsuleError(f'is truncated, it has {size} bytes: drop it')
    header = bytearray(length)
    _read(stream, header, 0)
    manifest = parse(bytes(header))
    if manifest.name != name:
        raise CapsuleError(f'holds the capsule {manifest.name}: give it that name again')
    whole = length + manifest.bytes
    if size < whole:
        raise CapsuleError(f'is truncated, it has {size} of {whole} bytes: drop it')
    if size > whole:
        raise CapsuleError(DAMAGED.format(f'it has {size} bytes, {whole} belong to it'))
    stream.seek(length)
    return manifest


def _read_tensor(stream: BinaryIO, entry: TensorEntry, at: int) -> Tensor:
    """at: where its bytes begin."""
    try:
        plain = moves.read_tensor(
            stream.fileno(), at, (entry.bytes,), torch.uint8, entry.checksum, entry.name
        )
        return plain.view(entry.torch_dtype).reshape(entry.shape)
    except moves.Damaged as fault:
        raise CapsuleError(DAMAGED.format(fault)) from fault
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CapsuleError(
            f'cannot be loaded: {entry.name} takes {entry.bytes} bytes of memory; {reason}'
        ) from error


def _explained(path: Path, done: str) -> AbstractContextManager[None]:
    return storage.explained(path, done, CapsuleError, REMEDIES)
