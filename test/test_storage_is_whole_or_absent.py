"""What is written is there whole, or what was there before is; what is no file is not read."""

import errno
import os

import pytest

from embodied_kv import storage


class Refused(Exception):
    pass


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
                raise Refused
    except Refused:
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
    with pytest.raises(storage.Linked, match='is a link, which is never followed'):
        storage.open_regular(link)
    for path in (pipe, tmp_path):
        with pytest.raises(storage.Irregular, match='is no regular file'):
            storage.open_regular(path)
    with pytest.raises(FileNotFoundError):
        storage.open_regular(tmp_path / 'nothing')
    before = os.listdir('/proc/self/fd')
    with pytest.raises(storage.Irregular):
        storage.open_regular(pipe)
    assert os.listdir('/proc/self/fd') == before, 'what is refused is closed'


def test_a_lock_is_had_once_and_given_back(tmp_path):
    with storage.locked(tmp_path) as first, storage.locked(tmp_path, wait=False) as second:
        assert (first, second) == (True, False)
        with storage.locked(tmp_path / 'file', wait=False, file=True) as beside:
            assert beside
    with storage.locked(tmp_path, wait=False) as again:
        assert again


def test_a_folder_that_is_not_there_is_not_made_a_file(tmp_path):
    with pytest.raises(FileNotFoundError), storage.locked(tmp_path / 'folder'):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('error', 'message'),
    [
        (OSError(errno.EROFS, 'Read-only', '/a'), '/a cannot be kept: Read-only; choose a folder'),
        (OSError(errno.EIO, 'Broken'), 'here cannot be kept: Broken; look at this disk'),
    ],
)
def test_an_error_says_what_to_do(tmp_path, error, message):
    with pytest.raises(Refused, match=message):
        with storage.explained('here', 'kept', Refused, storage.REMEDIES):
            raise error
