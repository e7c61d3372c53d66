"""A write leaves either the whole new content or the old one; only regular files are read."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from embodied_kv import storage


class RefusedError(Exception):
    pass


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize('fails', [False, True])
def test_a_file_is_the_new_one_or_the_old_one(tmp_path, fails):
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    storage.temporary(path).write_bytes(b'what a killed writer left')
    try:
        with storage.replaced(path) as new:
            storage.write(new, b'ne', memoryview(b'w'))
            assert path.read_bytes() == b'old'
            if fails:
                raise RefusedError
    except RefusedError:
        pass
    assert path.read_bytes() == (b'old' if fails else b'new')
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('there', [False, True])
@pytest.mark.parametrize('fails', [None, 'fsync', 'rename'])
def test_a_folder_is_the_new_one_or_the_old_one(tmp_path, monkeypatch, there, fails):
    path = tmp_path / 'folder'
    if there:
        path.mkdir()
        (path / 'old').write_text('')

    def fail(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    if fails:
        monkeypatch.setattr(os, fails, fail)
    try:
        with storage.replaced_folder(path) as new:
            (new / 'new').write_text('')
    except OSError:
        assert fails
    monkeypatch.undo()
    kept = ['old'] if there else []
    expected = kept if fails else ['new']
    assert [item.name for item in path.glob('*')] == expected
    assert list(tmp_path.iterdir()) == ([path] if expected else [])


def test_names_are_synced_after_what_they_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def log(descriptor):
        synced.append(os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}')))
        sync(descriptor)

    monkeypatch.setattr(os, 'fsync', log)
    with storage.replaced_folder(tmp_path / 'a') as new:
        (new / 'file').write_text('')
    assert synced == ['file', new.name, tmp_path.name]


def test_only_regular_files_are_read(tmp_path):
    file, link, pipe = (tmp_path / name for name in ('file', 'link', 'pipe'))
    file.write_text('text')
    link.symlink_to(file)
    os.mkfifo(pipe)
    descriptor = storage.open_regular(file)
    assert os.read(descriptor, 9) == b'text'
    os.close(descriptor)
    with pytest.raises(storage.LinkedFileError, match='is a link, which is never followed'):
        storage.open_regular(link)
    for path in (pipe, tmp_path):
        with pytest.raises(storage.IrregularFileError, match='is no regular file'):
            storage.open_regular(path)
    with pytest.raises(FileNotFoundError):
        storage.open_regular(tmp_path / 'nothing')
    before = os.listdir('/proc/self/fd')
    with pytest.raises(storage.IrregularFileError):
        storage.open_regular(pipe)
    assert os.listdir('/proc/self/fd') == before, 'what is refused is closed'


def test_a_lock_is_had_once_and_given_back(tmp_path):
    with storage.locked(tmp_path) as first, storage.locked(tmp_path, wait=False) as second:
        assert (first, second) == (True, False)
        with storage.locked(tmp_path / 'file', wait=False, file=True) as beside:
            assert beside
    with storage.locked(tmp_path, wait=False) as again:
        assert again


def test_a_lock_file_is_private_and_reached_through_no_link(tmp_path):
    target, link, pipe = (tmp_path / name for name in ('target', 'link', 'pipe'))
    link.symlink_to(target)
    with pytest.raises(OSError, match='it is a link, which is never followed'):
        with storage.locked(link, file=True):
            pass
    assert not target.exists()
    os.mkfifo(pipe)
    with pytest.raises(OSError, match='it is no regular file'):
        with storage.locked(pipe, file=True):
            pass
    with storage.locked(target, file=True):
        assert mode(target) == 0o600


def test_a_lock_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path, user = tmp_path / 'lock', os.geteuid()
    path.touch()
    monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
    with pytest.raises(PermissionError, match=f'it belongs to user {user}'):
        with storage.locked(path, file=True):
            pass
    with storage.locked(path, file=True, own=False) as ours:
        assert ours
    with storage.locked(tmp_path) as ours:
        assert ours, 'a folder may be shared'


def test_lock_files_lie_in_the_runtime_folder_of_this_user(tmp_path, monkeypatch):
    own, other = tmp_path / 'own', Path(tempfile.gettempdir())
    own.mkdir(0o700)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(own))
    assert storage.runtime_folder() == own
    for path in ('', 'relative', str(tmp_path / 'nothing')):
        monkeypatch.setenv('XDG_RUNTIME_DIR', path)
        assert storage.runtime_folder() == other
    monkeypatch.delenv('XDG_RUNTIME_DIR')
    assert storage.runtime_folder() == other
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(own))
    user = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
    assert storage.runtime_folder() == other


def test_new_folders_and_files_are_of_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        storage.private_folder(tmp_path / 'a' / 'b')
        storage.write(tmp_path / 'a' / 'b' / 'file', b'')
    finally:
        os.umask(before)
    assert mode(tmp_path / 'a') == mode(tmp_path / 'a' / 'b') == 0o700
    assert mode(tmp_path / 'a' / 'b' / 'file') == 0o600


def test_a_wider_folder_is_left_and_named_once(tmp_path, caplog):
    folder = tmp_path / 'folder'
    folder.mkdir()
    folder.chmod(0o755)
    for _ in range(2):
        storage.private_folder(folder)
    assert mode(folder) == 0o755
    (line,) = caplog.messages
    assert line == f'{folder} is open to other users (mode 0755); run: chmod 700 {folder}'
    (tmp_path / 'file').touch()
    for path in (tmp_path / 'file', tmp_path / 'file' / 'below'):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            storage.private_folder(path)


def test_a_reserve_gives_its_space_for_a_while(tmp_path):
    path = tmp_path / 'reserve'
    reserve = storage.Reserve(path, 2**20)
    assert path.stat().st_blocks * 512 >= 2**20 and mode(path) == 0o600
    with pytest.raises(RefusedError), reserve.released():
        assert not path.exists()
        raise RefusedError
    assert path.stat().st_blocks * 512 >= 2**20
    os.truncate(path, 0)
    os.truncate(path, 2**20)  # like a copy that has holes
    storage.Reserve(path, 2**20)
    assert path.stat().st_blocks * 512 >= 2**20


def test_a_reserve_holds_what_there_is(tmp_path, monkeypatch):
    path, allocate, room = tmp_path / 'reserve', os.posix_fallocate, 2**20

    def limited(descriptor, start, size):
        if size > room:
            raise OSError(errno.ENOSPC, 'No space left on device')
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, 'posix_fallocate', limited)
    reserve = storage.Reserve(path, 2**20)
    room = 2**19
    with reserve.released():
        pass
    assert 2**18 < path.stat().st_size <= room
    room = 0
    with reserve.released():
        pass
    assert path.stat().st_size == 0
    room = 2**20
    with reserve.released():
        pass
    assert path.stat().st_size == 2**20


def test_a_reserve_follows_no_link(tmp_path):
    path, target = tmp_path / 'reserve', tmp_path / 'target'
    target.write_text('mine')
    path.symlink_to(target)
    with storage.Reserve(path, 2**20).released():
        pass
    assert target.read_text() == 'mine'


def test_a_folder_that_is_not_there_is_not_made_a_file(tmp_path):
    with pytest.raises(FileNotFoundError), storage.locked(tmp_path / 'folder'):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('error', 'message'),
    [
        (OSError(errno.EROFS, 'Read-only', '/a'), '/a cannot be kept: Read-only; choose a folder'),
        (OSError(errno.EIO, 'Broken'), 'here cannot be kept: Broken; check this disk'),
    ],
)
def test_error_names_the_remedy(tmp_path, error, message):
    with pytest.raises(RefusedError, match=message):
        with storage.explained('here', 'kept', RefusedError, storage.REMEDIES):
            raise error


def test_each_file_of_a_folder_is_on_the_medium_before_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, 'sync', lambda path: synced.append(path.name))
    with storage.replaced_folder(tmp_path / 'data') as new:
        (new / 'meta' / 'episodes').mkdir(parents=True)
        (new / 'meta' / 'episodes' / 'file').write_bytes(b'deep')
    assert {'meta', 'episodes', 'file'} <= set(synced)
