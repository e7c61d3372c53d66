"""A capsule's name is a plain word; nothing outside the folder is read, written or dropped."""

import pytest

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.disk import Disk

NAMES = [
    '',
    '.',
    '..',
    '.hidden',
    '../x',
    'x/../../y',
    'a/b',
    '/etc/x',
    '~x',
    'a\0',
    'a\n',
    'a b',
    'é',
    '٣',
    'x' * 65,
    None,
    7,
]


def capsule(name):
    return Capsule(name, Boundary('s', 0, 0), 'f', {}, {})


@pytest.mark.parametrize('name', NAMES, ids=ascii)
def test_it_is_refused_everywhere(name, tmp_path):
    inside = tmp_path / 'inside'
    disk = Disk(inside)
    (tmp_path / 'x.safetensors').write_bytes(b'mine')
    verbs = (
        lambda: disk.save(capsule(name)),
        lambda: disk.load(name, 'f'),
        lambda: disk.entry(name),
        lambda: disk.drop(name),
    )
    for verb in verbs:
        with pytest.raises(CapsuleError, match='cannot name a capsule: use 1 to 64 letters'):
            verb()
    assert list(inside.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {'inside', 'x.safetensors'}
    assert (tmp_path / 'x.safetensors').read_bytes() == b'mine'


@pytest.mark.parametrize('name', ['a', '-', '_', '7', 'x' * 64, 'a..b', 'run-1.2_b'])
def test_a_plain_word_is_taken(name, tmp_path):
    Disk(tmp_path).save(capsule(name))
    assert Disk(tmp_path).load(name, 'f').name == name


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(CapsuleError, match='file cannot be opened: File exists; move it away'):
        Disk(tmp_path / 'file')
