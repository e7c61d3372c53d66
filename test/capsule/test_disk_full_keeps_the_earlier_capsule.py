"""A failed save reports why, leaves no temporary file, and keeps the other capsules."""

import errno
import os
import resource
from contextlib import contextmanager

import pytest
import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.errors import ErrorCode


def capsule(size, name='a'):
    return Capsule(name, Boundary('s', 0, 0), 'f', {'x': torch.full((size,), 7)}, {}, 1.0)


@contextmanager
def files_of_at_most(size):
    """Make the kernel refuse to write more than `size` bytes to a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_stands(disk):
    assert [path.name for path in disk.folder.iterdir()] == ['a.safetensors']
    assert torch.equal(disk.load('a', 'f').tensors['x'], torch.full((10,), 7))


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    disk.save(capsule(10))
    return disk


@pytest.mark.parametrize('limit', [0, 100, 50_000])
def test_full_disk_refuses_a_new_file(disk, limit):
    message = r'/b\.safetensors cannot be written: File too large; drop capsules or free'
    with files_of_at_most(limit), pytest.raises(CapsuleError, match=message):
        disk.save(capsule(10_000, 'b'))
    assert_stands(disk)


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_disk_that_reports_late_that_it_is_full_keeps_the_earlier_capsule(disk, monkeypatch, call):
    def fails(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    message = r'b\.safetensors cannot be written: No space left on device; drop capsules or free'
    with pytest.raises(CapsuleError, match=message):
        disk.save(capsule(10_000, 'b'))
    monkeypatch.undo()
    assert_stands(disk)


def test_saving_succeeds_again_once_space_is_freed(disk):
    with files_of_at_most(100), pytest.raises(CapsuleError):
        disk.save(capsule(10_000, 'b'))
    disk.save(capsule(10_000, 'b'))
    assert disk.load('b', 'f').tensors['x'].shape == (10_000,)


def test_removed_folder_is_reported(disk):
    disk.drop('a')
    disk.folder.rmdir()
    with pytest.raises(CapsuleError, match='cannot be written: No such file or directory'):
        disk.save(capsule(10))
    with pytest.raises(CapsuleError, match='cannot be listed: No such file or directory'):
        disk.names()


@pytest.mark.parametrize(
    'number, code',
    [
        (errno.ENOSPC, ErrorCode.NO_ROOM),
        (errno.EDQUOT, ErrorCode.NO_ROOM),
        (errno.EIO, ErrorCode.UNAVAILABLE),
        (errno.EACCES, ErrorCode.UNAVAILABLE),
    ],
)
def test_the_error_of_a_disk_has_a_code(disk, monkeypatch, number, code):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, 'fsync', fails)
    with pytest.raises(CapsuleError) as raised:
        disk.save(capsule(10, 'b'))
    assert raised.value.code == code
    assert_stands(disk)


def test_a_capsule_of_another_model_is_a_mismatch_and_a_damaged_one_is_damaged(disk):
    with pytest.raises(CapsuleError) as raised:
        disk.load('a', 'another model')
    assert raised.value.code == ErrorCode.MISMATCH
    (file,) = disk.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CapsuleError) as raised:
        disk.load('a', 'f')
    assert raised.value.code == ErrorCode.DAMAGED
