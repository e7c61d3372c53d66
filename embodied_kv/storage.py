"""Files that are whole or absent, locks, and what to do where the disk refuses.

It knows files and folders. It does not know what they hold.

What is written gets a temporary name, is synced, then renamed: one rename replaces what was there
in one step. That the new name is on the medium is another sync, of the folder around it. A file is
read through one descriptor and through no link.

Needs Linux and a local file system (flock on a folder, O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = '.new'  # and a dot in front
REMEDIES = {
    errno.EACCES: 'give this user the right to',
    errno.EROFS: 'choose a folder that can be written',
    errno.ENOTDIR: 'choose a folder',
}
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


class Irregular(Exception):
    """What is at a path is no file to be read."""


class Linked(Irregular):
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
    """A new file of these bytes, one part after the other."""
    with path.open('xb', buffering=0) as stream:
        for part in parts:
            data = memoryview(part)
            while data:  # one write moves 2 GB at most
                data = data[stream.write(data) :]


def open_regular(path: Path) -> int:
    """A descriptor to read a file by. Raises FileNotFoundError, Linked, Irregular, OSError."""
    try:  # without O_NONBLOCK a pipe of that name would wait for a writer
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Linked('is a link, which is never followed') from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Irregular('is no regular file')
    return descriptor


@contextmanager
def locked(path: Path, wait: bool = True, file: bool = False) -> Iterator[bool]:
    """Whether a folder is ours until the end, or the end of this process.

    wait: for whoever has it; without, that is False. file: it is a file, made where there is none.
    """
    kind = os.O_CREAT if file else os.O_DIRECTORY
    descriptor = os.open(path, os.O_RDONLY | kind | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def explained(
    path: Path, done: str, kind: Callable[[str], Exception], remedies: Mapping[int, str]
) -> Iterator[None]:
    """Turns an OSError into `kind`, in one line: what cannot be `done`, why, and what to do."""
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno, 'look at this disk')
        which = error.filename2 or error.filename or path
        raise kind(f'{which} cannot be {done}: {error.strerror}; {remedy}') from error
