"""Files that are whole or absent, private folders, locks, and remedies for disk errors.

A new file gets a temporary name, is synced, and is renamed, which replaces an older file in one
step. The new name is on the medium after a sync of its folder. Files are read through one
descriptor, and links are not followed.

This module needs Linux and a local file system (flock on a folder, O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from embodied_kv.errors import CodedError, code_of

log = logging.getLogger(__name__)

TEMPORARY = '.new'  # and a dot in front
REMEDIES = {
    errno.EACCES: 'give this user the right to do so',
    errno.EPERM: 'remove it, or choose a folder of this user',
    errno.ELOOP: 'remove the link',
    errno.EROFS: 'choose a folder that can be written',
    errno.ENOTDIR: 'choose a folder',
}
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_shared: set[Path] = set()  # folders with a logged warning


class IrregularFileError(Exception):
    """Raised if a path is not a regular file."""


class LinkedFileError(IrregularFileError):
    """Raised if a path is a link."""


def temporary(path: Path) -> Path:
    """Return the temporary path of a file until it is whole."""
    return path.with_name(f'.{path.name}{TEMPORARY}')


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700.

    A folder that exists keeps its mode. If other users have any right to it, one log line states
    how to remove that. Raises OSError; FileExistsError if the path is no folder.
    """
    try:
        path.mkdir(0o700)
    except FileNotFoundError:
        private_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS and path not in _shared:
            _shared.add(path)
            log.warning(
                '%s is open to other users (mode %04o); run: chmod 700 %s', path, mode, path
            )


def runtime_folder() -> Path:
    """Return the folder for lock files of this user's processes.

    It is $XDG_RUNTIME_DIR if that is a folder of this user, else the system's temporary folder.
    Processes with and without that variable do not share their locks.
    """
    path = Path(os.environ.get('XDG_RUNTIME_DIR', ''))
    with suppress(OSError):
        is_usable = path.is_absolute() and path.is_dir() and os.access(path, os.W_OK | os.X_OK)
        if is_usable and path.stat().st_uid == os.geteuid():
            return path
    return Path(tempfile.gettempdir())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a new file, which is synced and renamed to `path` at the end.

    After an error, the older file remains. A `sync` of the folder puts the name on the medium.
    """
    new = temporary(path)
    new.unlink(missing_ok=True)
    try:
        yield new
        sync(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for new files, which becomes `path` at the end, on the medium.

    Raises OSError if there is a file, or a folder that is not empty, by then.
    """
    path = path.resolve()  # a link may lead to another disk
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f'.{path.name}.new-', dir=path.parent))
    try:
        yield new
        for item in (*new.rglob('*'), new):
            sync(item)
        new.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for new files, which replaces `path` at the end, on the medium.

    A process that is killed between the two renames leaves the older folder as .NAME.old-PID.
    """
    new, old = (path.with_name(f'.{path.name}.{end}-{os.getpid()}') for end in ('new', 'old'))
    new.mkdir(parents=True)
    try:
        yield new
        for item in (*new.rglob('*'), new):
            sync(item)
        if path.exists():
            path.rename(old)
        new.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def write(path: Path, *parts: bytes | memoryview) -> None:
    """Write a new file of consecutive parts, with mode 0600."""
    with open(path, 'xb', buffering=0, opener=open_private) as stream:
        for part in parts:
            data = memoryview(part)
            while data:  # one write moves 2 GB at most
                data = data[stream.write(data) :]


def open_private(path: str, flags: int) -> int:
    """Open a file, with mode 0600 if it is new; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def open_regular(path: Path) -> int:
    """Return a descriptor to read a file.

    Raises FileNotFoundError, LinkedFileError, IrregularFileError, OSError.
    """
    try:  # without O_NONBLOCK, a pipe would wait for a writer
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise LinkedFileError('is a link, which is never followed') from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularFileError('is no regular file')
    return descriptor


@contextmanager
def locked(path: Path, wait: bool = True, file: bool = False, own: bool = True) -> Iterator[bool]:
    """Lock a folder or file; yield whether that succeeded.

    Args:
        path: The folder or file.
        wait: Wait for another process that has the lock.
        file: The path is a file, which is created with mode 0600 if necessary.
        own: Refuse a file of another user.

    Raises:
        OSError: if the path cannot be opened, or is a link or of another kind.
    """
    # without O_NONBLOCK, a pipe would wait for a writer
    kind = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK if file else os.O_DIRECTORY
    try:
        descriptor = os.open(path, os.O_RDONLY | kind | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not file or error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, 'it is a link, which is never followed', str(path)) from None
    try:
        if file:
            _check_lock_file(descriptor, path, own)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _check_lock_file(descriptor: int, path: Path, own: bool) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, 'it is no regular file', str(path))
    if own and status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f'it belongs to user {status.st_uid}', str(path))


class Reserve:
    """A file that reserves disk space for changes that must succeed on a full disk.

    size: bytes, limited to a quarter of the free space when the file is created. A file system
    that compresses or copies on write may give back less.
    """

    LEAST = 2**14

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size, self._held = path, size, 0
        with suppress(OSError):
            self._held = path.lstat().st_size
        self._hold()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free the space in the context, and reserve what is still free at its end."""
        with suppress(OSError):
            self._path.unlink()
        try:
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        try:
            room = os.statvfs(self._path.parent)
            size = max(self._held, min(self._size, room.f_bavail * room.f_frsize // 4))
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            log.warning('%s reserves no disk space: %s', self._path, error.strerror)
            return
        try:
            while size >= self.LEAST and not _allocated(descriptor, size):
                size = size * 7 // 8
        finally:
            os.close(descriptor)
        if size >= self.LEAST:
            self._held = max(self._held, size)


def _allocated(descriptor: int, size: int) -> bool:
    """Return whether the disk has space for a file of a size; empty the file if not."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.truncate(descriptor, 0)
        return False
    return True


@contextmanager
def explained(
    path: Path, done: str, kind: Callable[[str], Exception], remedies: Mapping[int, str]
) -> Iterator[None]:
    """Convert an OSError to `kind`, whose message names the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno or 0, 'check this disk')
        which = error.filename2 or error.filename or path
        explained = kind(f'{which} cannot be {done}: {error.strerror}; {remedy}')
        if isinstance(explained, CodedError):
            explained.code = code_of(error)
        raise explained from error
