"""Files that are whole or absent, private folders, locks, and what to do where the disk refuses.

It knows files and folders. It does not know what they hold.

What is written gets a temporary name, is synced, then renamed: one rename replaces what was there
in one step. That the new name is on the medium is another sync, of the folder around it. A file is
read through one descriptor and through no link.

Needs Linux and a local file system (flock on a folder, O_NOFOLLOW).
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
    errno.EACCES: 'give this user the right to',
    errno.EPERM: 'remove it, or choose a folder of this user',
    errno.ELOOP: 'remove the link',
    errno.EROFS: 'choose a folder that can be written',
    errno.ENOTDIR: 'choose a folder',
}
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_shared: set[Path] = set()  # folders that a warning named


class IrregularFileError(Exception):
    """What is at a path is no file to be read."""


class LinkedFileError(IrregularFileError):
    """It is a link."""


def temporary(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(f'.{path.name}{TEMPORARY}')


def sync(path: Path) -> None:
    """Waits until a file's bytes, or the names in a folder, are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700.

    A folder that exists keeps its mode. If other users have any right to it, the log says once
    how to take that away. Raises OSError; FileExistsError if the path is no folder.
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
        if path.is_absolute() and path.is_dir() and os.access(path, os.W_OK | os.X_OK):
            if path.stat().st_uid == os.geteuid():
                return path
    return Path(tempfile.gettempdir())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary path for a new file; in the end it is synced and has the name of `path`.

    If it fails, what was there stands. `sync` of the folder has to follow where it matters.
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
def replaced_folder(path: Path) -> Iterator[Path]:
    """As `replaced`, of a folder of files; it is on the medium in the end.

    Two renames cannot be one: a process killed between them leaves the old one as .NAME.old-PID.
    """
    new, old = (path.with_name(f'.{path.name}.{end}-{os.getpid()}') for end in ('new', 'old'))
    new.mkdir(parents=True)
    try:
        yield new
        for item in (*new.iterdir(), new):
            sync(item)
        if path.exists():
            path.rename(old)
        new.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def write(path: Path, *parts: bytes | memoryview) -> None:
    """A new file of these bytes, one part after the other, with mode 0600."""
    with open(path, 'xb', buffering=0, opener=open_private) as stream:
        for part in parts:
            data = memoryview(part)
            while data:  # one write moves 2 GB at most
                data = data[stream.write(data) :]


def open_private(path: str, flags: int) -> int:
    """Open with mode 0600 what does not exist yet: the `opener` of a file of this user alone."""
    return os.open(path, flags, 0o600)


def open_regular(path: Path) -> int:
    """A descriptor to read a file by. Raises FileNotFoundError, LinkedFileError, IrregularFileError, OSError."""
    try:  # without O_NONBLOCK a pipe of that name would wait for a writer
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
    """Whether a folder is ours until the end, or the end of this process.

    wait: for whoever has it; without, that is False. file: it is a file, made with mode 0600 where
    there is none, and opened through no link. own: a file of another user is refused. Raises
    OSError.
    """
    # without O_NONBLOCK a pipe of that name would wait for a writer
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
    """A file that holds space of the disk for changes that must succeed on a full disk.

    size: bytes, but at most a quarter of what is free when the file is made. A file system that
    compresses or copies on write may give back less.
    """

    LEAST = 2**14

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size, self._held = path, size, 0
        with suppress(OSError):
            self._held = path.lstat().st_size
        self._hold()

    @contextmanager
    def released(self) -> Iterator[None]:
        """The space is free inside, and held again in the end as far as it is still free."""
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
            log.warning('%s holds no space of the disk: %s', self._path, error.strerror)
            return
        try:
            while size >= self.LEAST and not _allocated(descriptor, size):
                size = size * 7 // 8
        finally:
            os.close(descriptor)
        if size >= self.LEAST:
            self._held = max(self._held, size)


def _allocated(descriptor: int, size: int) -> bool:
    """Whether the disk had room for all of a file of so many bytes; else it is empty."""
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
    """Turns an OSError into `kind`, in one line: what cannot be `done`, why, and what to do."""
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno or 0, 'look at this disk')
        which = error.filename2 or error.filename or path
        explained = kind(f'{which} cannot be {done}: {error.strerror}; {remedy}')
        if isinstance(explained, CodedError):
            explained.code = code_of(error)
        raise explained from error
