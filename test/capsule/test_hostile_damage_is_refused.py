"""A file that differs in one bit from what this engine saved is refused with the reason."""

import os

import pytest
import torch
from hostile_folder import FINE, Folder, capsule, crafted
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.capsule.capsule import CapsuleError


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp('shared'))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_truncated_at_every_4_kib(folder):
    folder.disk.drop('a')
    folder.disk.save(capsule(floats=60_000))
    whole = folder.path.read_bytes()
    assert len(whole) > 100_000
    for size in range(0, len(whole), 4096):
        folder.refuses(whole[:size], rf'is truncated, it has {size} .*: drop it')
    folder.keeps()


def test_truncated_in_the_header(folder):
    for size in range(0, len(folder.good), 5):
        folder.refuses(folder.good[:size], 'is truncated')


def test_a_flipped_bit_in_any_byte_is_refused(folder):
    for position in range(len(folder.good)):
        damaged = bytearray(folder.good)
        damaged[position] ^= 1 << position % 8
        folder.refuses(damaged, 'drop it')
    folder.keeps()


def test_a_damaged_manifest_is_not_believed(folder):
    for old, new in ((b'version', b'Version'), (b': 1,', b': 9,'), (b'fine', b'none')):
        assert old in folder.good
        folder.refuses(folder.good.replace(old, new, 1), 'its manifest does not have its checksum')


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_flipped_bytes_are_refused(shared, data):
    places = st.integers(0, len(shared.good) - 1)
    damaged = bytearray(shared.good)
    for position, mask in data.draw(
        st.dictionaries(places, st.integers(1, 255), min_size=1, max_size=8)
    ).items():
        damaged[position] ^= mask
    shared.refuses(damaged)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64), st.booleans())
def test_any_other_bytes_are_refused(shared, content, as_header):
    shared.refuses(crafted(content) if as_header else content)


def test_one_byte_more_is_refused(folder):
    size = len(folder.good)
    message = rf'is damaged \(it has {size + 1} bytes, {size} belong to it\): drop it'
    folder.refuses(folder.good + b'\0', message)


def test_a_file_cut_short_while_it_is_read_is_refused(folder, monkeypatch):
    empty = torch.empty

    def cut_then_allocate(*args, **kwargs):
        os.truncate(folder.path, len(folder.good) - 20)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, 'empty', cut_then_allocate)
    folder.refuses(None, 'it was cut short while it was read')


def test_more_than_memory_is_refused(folder, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("can't allocate memory\nand a trace")

    monkeypatch.setattr(torch, 'empty', fails)
    folder.refuses(None, r"cannot be loaded: .* bytes of memory; can't allocate memory$")


def test_a_foreign_fingerprint_is_refused_before_a_tensor_is_read(folder, monkeypatch):
    folder.path.write_bytes(folder.good[:-100] + os.urandom(100))  # tensors and facts
    monkeypatch.setattr(
        'embodied_kv.capsule.file_format._read_tensor', lambda *_: pytest.fail('a tensor is read')
    )
    with pytest.raises(CapsuleError, match=r'a\.safetensors was made by fine, this is other: '):
        folder.disk.load('a', 'other')
    monkeypatch.undo()
    folder.refuses(None, r'is damaged \(.* does not have its checksum\)')
    assert folder.disk.entry('a').fingerprint == FINE
