"""A link, pipe, folder or other capsule's file under a capsule's name is refused and kept."""

import os

import pytest
from hostile_folder import FINE, Folder, capsule

from embodied_kv.capsule.capsule import CapsuleError


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_a_file_under_another_name_is_refused(folder):
    folder.path.write_bytes((folder.disk.folder / 'kept.safetensors').read_bytes())
    folder.refuses(None, 'holds the capsule kept: give it that name again')


def test_a_link_is_not_followed(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp('outside') / 'a.safetensors'
    outside.write_bytes(folder.good)
    folder.path.unlink()
    folder.path.symlink_to(outside)
    folder.refuses(None, 'is a link, which is never followed: drop it')
    with pytest.raises(CapsuleError, match='is a link'):
        folder.disk.entry('a')
    with pytest.raises(CapsuleError, match='already'):
        folder.disk.save(capsule())
    folder.disk.drop('a')
    assert outside.read_bytes() == folder.good and folder.disk.names() == ('kept',)


def test_a_temporary_link_is_not_followed(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp('outside') / 'victim'
    outside.write_bytes(b'mine')
    folder.disk.drop('a')
    (folder.disk.folder / '.a.safetensors.new').symlink_to(outside)
    folder.disk.save(capsule())
    folder.disk.load('a', FINE)
    assert outside.read_bytes() == b'mine'


def test_a_pipe_is_refused_without_waiting(folder):
    folder.path.unlink()
    os.mkfifo(folder.path)
    folder.refuses(None, 'is no regular file: move it away')


def test_a_folder_instead_of_it_is_refused(folder):
    folder.path.unlink()
    folder.path.mkdir()
    folder.refuses(None, 'is no regular file: move it away')
    with pytest.raises(CapsuleError, match='already: drop a first'):
        folder.disk.save(capsule())
    with pytest.raises(CapsuleError, match='dropped: Is a directory; move that folder away'):
        folder.disk.drop('a')
    folder.keeps()
