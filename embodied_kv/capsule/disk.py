"""Capsules in a folder: they outlive the process, and each is whole or absent.

A capsule is one file, `NAME.safetensors`, written under a temporary name, synced, then renamed. No
file is replaced: a name that exists is refused. A writer locks the folder, so the process that
has the lock may remove every temporary file, whose writer is dead. A registry has another lock,
`claimed`, until it is closed, because its list of the folder is valid for one process only. A file
is read through one descriptor and never mapped, so the bytes that were checked are those returned,
and truncation during a read raises an error instead of a signal.

Needs Linux and a local file system (flock on a folder, O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from embodied_kv import storage
from embodied_kv.capsule import file_format
from embodied_kv.capsule.capsule import Capsule, CapsuleError
from embodied_kv.capsule.manifest import Manifest
from embodied_kv.errors import ErrorCode

NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}')  # so no name leaves the folder
ENDING, LOCK = '.safetensors', 'capsules.lock'
REMEDIES = {
    **storage.REMEDIES,
    **dict.fromkeys(storage.FULL, 'drop capsules or free some space'),
    errno.EISDIR: 'move that folder away',
    errno.EEXIST: 'move it away',
}


def check_name(name: str) -> None:
    """Raise CapsuleError for a name that no capsule may have."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise CapsuleError(
            f'{str(name)[:80]!r} cannot name a capsule: use 1 to 64 letters, digits, '
            'dots, _ and -, with no dot in front'
        )


class Disk:
    """The capsules in one folder, which is created if it does not exist.

    Any number of threads may read; one saves at a time. Each method raises CapsuleError with one
    line that names the file and the remedy.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        with _explained(self.folder, 'opened'):
            is_new = not self.folder.is_dir()
            storage.private_folder(self.folder)
            if is_new:
                storage.sync(self.folder.parent)
            with storage.locked(self.folder, wait=False) as locked:
                if locked:
                    self._remove_leftovers()

    def save(self, capsule: Capsule) -> int:
        """Write a capsule and return the size of the file. Raises CapsuleError if the name exists.

        When the method returns, the capsule is on the medium. When it raises, there is no file,
        unless only the last sync failed; then a power failure may remove the file.
        """
        path = self._path(capsule.name)
        manifest, parts = file_format.parts(capsule)
        with _explained(path, 'written'), storage.locked(self.folder):
            if os.path.lexists(path):  # a link or a folder is not replaced either
                raise CapsuleError(
                    f'there is a file {path} already: drop {capsule.name} first',
                    ErrorCode.ALREADY_EXISTS,
                )
            self._remove_leftovers()
            with storage.replaced(path) as new:
                storage.write(new, *parts)
            storage.sync(self.folder)
        return manifest.bytes

    def load(self, name: str, fingerprint: str) -> Capsule:
        """Return a capsule in new host memory, for the engine of this fingerprint.

        Raises CapsuleError for another fingerprint, before any tensor is read.
        """
        with self._open(self._path(name)) as stream:
            return file_format.read(stream, fingerprint, name)

    def entry(self, name: str) -> Manifest:
        """Return the manifest of a capsule; its tensors and facts are neither read nor checked."""
        with self._open(self._path(name)) as stream:
            return file_format.read_manifest(stream, name)

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all capsule files, damaged ones included."""
        with _explained(self.folder, 'listed'):
            files = sorted(os.listdir(self.folder))
        names = (file.removesuffix(ENDING) for file in files if file.endswith(ENDING))
        return tuple(name for name in names if NAME.fullmatch(name))

    def entries(self) -> tuple[Manifest, ...]:
        """Return the manifests of all files that can be read; `entry` raises for the others."""
        found = []
        for name in self.names():
            with suppress(CapsuleError):
                found.append(self.entry(name))
        return tuple(found)

    def drop(self, name: str) -> None:
        """Remove the file, even if it is damaged."""
        path = self._path(name)
        with _explained(path, 'dropped'):
            try:
                path.unlink()
            except FileNotFoundError:
                raise self._absent(name) from None
            storage.sync(self.folder)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.folder / f'{name}{ENDING}'

    def _absent(self, name: str) -> CapsuleError:
        there = ', '.join(self.names()) or 'nothing'
        return CapsuleError(
            f'no capsule {name} in {self.folder}; there is {there}', ErrorCode.NOT_FOUND
        )

    def _remove_leftovers(self) -> None:
        """Remove temporary files; under the lock of the folder, their writers are dead."""
        for path in self.folder.glob(str(storage.temporary(Path(f'*{ENDING}')))):
            path.unlink()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder against every other registry, of any process, until the block ends.

        Raises CapsuleError that names the process which holds the lock.
        """
        path = self.folder / LOCK
        with _explained(path, 'locked'), storage.locked(path, wait=False, file=True) as locked:
            if not locked:
                raise CapsuleError(
                    f'{self.folder} must be used by one process at a time (process {_owner(path)} '
                    'has it); end that process, or choose another folder',
                    ErrorCode.UNAVAILABLE,
                )
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, 'w') as file:
                file.write(str(os.getpid()))
            yield

    @contextmanager
    def _open(self, path: Path) -> Iterator[BinaryIO]:
        """Open a regular file, through no link; prefix errors with its path."""
        with _explained(path, 'read'):
            try:
                descriptor = storage.open_regular(path)
            except FileNotFoundError:
                raise self._absent(path.name.removesuffix(ENDING)) from None
            except storage.LinkedFileError as error:
                raise CapsuleError(f'{path} {error}: drop it', ErrorCode.DAMAGED) from None
            except storage.IrregularFileError as error:
                raise CapsuleError(f'{path} {error}: move it away', ErrorCode.DAMAGED) from None
            with os.fdopen(descriptor, 'rb', buffering=0) as stream:
                try:
                    yield stream
                except CapsuleError as error:
                    raise CapsuleError(f'{path} {error}', error.code) from error


def _owner(path: Path) -> str:
    """Return the id of the process that locked a file, as written into the file."""
    with suppress(OSError, ValueError), path.open() as file:
        return str(int(file.read(20)))
    return 'unknown'


def _explained(path: Path, done: str) -> AbstractContextManager[None]:
    return storage.explained(path, done, CapsuleError, REMEDIES)
