"""Capsules in a folder: they outlive the process, and each is whole or absent.

It knows files. It does not know what a capsule means, nor which to keep.

A capsule is one file, `NAME.safetensors`, written under a temporary name, synced, then renamed. No
file is replaced: a name that is in use is refused. A writer locks the folder, so whoever holds the
lock may remove every temporary file: its writer is dead. A registry holds another lock for as long
as it lives, `claimed`, since its list of the folder is true for one process alone. A file is read
through one descriptor, never mapped: what was checked is what is handed out, and a file cut short
under a reader is an error and not a signal.

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


class Disk:
    """The capsules in one folder, which is created where it does not exist.

    Any number of threads may read a folder; saving is one at a time. Every method
    raises CapsuleError, in one line, that names the file and says what to do.
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
        """Keeps it -> bytes of the file. Raises CapsuleError where its name is in use.

        When it returns, the capsule is on the medium. When it raises, nothing of it is there; but
        where only the last sync failed, it is, and a power cut may take it back.
        """
        path = self._path(capsule.name)
        manifest, parts = file_format.parts(capsule)
        with _explained(path, 'written'), storage.locked(self.folder):
            self._check_absent(path)
            self._remove_leftovers()
            with storage.replaced(path) as new:
                storage.write(new, *parts)
            storage.sync(self.folder)
        return manifest.bytes

    def load(self, name: str, fingerprint: str) -> Capsule:
        """The capsule, in host memory that is its own.

        fingerprint: of who asks. Where the capsule has another, no byte of its tensors is read.
        """
        with self._open(self._path(name)) as stream:
            return file_format.read(stream, fingerprint, name)

    def entry(self, name: str) -> Manifest:
        """What the file says of itself; tensors and facts are not read, so not checked either."""
        with self._open(self._path(name)) as stream:
            return file_format.read_manifest(stream, name)

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
        return CapsuleError(
            f'no capsule {name} in {self.folder}; there is {there}', ErrorCode.NOT_FOUND
        )

    def _check_absent(self, path: Path) -> None:
        """Under the lock. A link or a folder of that name counts: nothing is replaced."""
        if os.path.lexists(path):
            name = path.name.removesuffix(ENDING)
            raise CapsuleError(
                f'there is a file {path} already: drop {name} first', ErrorCode.ALREADY_EXISTS
            )

    def _remove_leftovers(self) -> None:
        """Under the lock alone: the writer of every temporary file is dead then."""
        for path in self.folder.glob(str(storage.temporary(Path(f'*{ENDING}')))):
            path.unlink()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep every other registry, of any process, out of the folder until the block ends.

        Raises CapsuleError that names the process which has it.
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
        """A regular file, never through a link; puts its path before what is wrong with it."""
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
    """Return the number of the process that locked a file, which it wrote into it."""
    with suppress(OSError, ValueError), path.open() as file:
        return str(int(file.read(20)))
    return 'unknown'


def _explained(path: Path, done: str) -> AbstractContextManager[None]:
    return storage.explained(path, done, CapsuleError, REMEDIES)
