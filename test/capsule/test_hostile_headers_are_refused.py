"""A header with false statements is refused, and no memory is allocated for them."""

import pytest
import torch
from hostile_folder import FINE, Folder, crafted, entry, manifest, signed

from embodied_kv.capsule.capsule import Boundary
from embodied_kv.capsule.manifest import Manifest, TensorEntry


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.mark.parametrize(
    'content',
    [
        b'PK\x03\x04' + bytes(100),
        b'\x80\x04\x95' + bytes(100),
        crafted({}),
        crafted({'x': {'dtype': 'U8', 'shape': [1], 'data_offsets': [0, 1]}}, b'\0'),
        crafted(b'{' + b'[' * 200_000),
        crafted(b'{' * 200_000),
        crafted({'__metadata__': 5}),
        crafted({'__metadata__': {'manifest': 5, 'checksum': 5}}),
        crafted({'__metadata__': {'manifest': '\ud800', 'checksum': ''}}),
    ],
    ids=(
        'zip',
        'pickle',
        'nothing',
        'foreign',
        'nested',
        'braces',
        'number',
        'kinds',
        'surrogate',
    ),
)
def test_wrong_magic_is_no_capsule(folder, content):
    folder.refuses(content, 'is not a capsule, or its start is damaged: drop it')
    folder.keeps()


@pytest.mark.parametrize('length', [2**24 + 1, 2**40, 2**63, 2**64 - 1])
def test_an_absurd_header_length_allocates_nothing(folder, length):
    folder.refuses(crafted(manifest(), length=length), 'is not a capsule')


def test_a_header_longer_than_the_file_allocates_nothing(folder):
    folder.refuses(crafted(manifest(), length=2**24), 'is truncated, it has')


@pytest.mark.parametrize(
    ('dtype', 'shape', 'message'),
    [
        ('float64', [2**40], r'is truncated, it has \d+ of 87960930\d+ bytes'),
        ('uint8', [2**31, 2**31, 2**31], 'is truncated'),
        ('uint8', [2**62, 4], 'is truncated'),
        ('float32', [10**400], 'makes no sense'),
        ('uint8', [-1], 'makes no sense'),
        ('uint8', [-4, -4], 'makes no sense'),
        ('uint8', [16.0], 'makes no sense'),
        ('uint8', [True] * 2, 'makes no sense'),
    ],
)
def test_absurd_shapes_allocate_nothing(folder, monkeypatch, dtype, shape, message):
    # Written as the engine writes it, so that the rest of the header is consistent.
    tensors = (TensorEntry('x', dtype, tuple(shape), 0),)
    facts = TensorEntry('__facts__', 'uint8', (2,), 0)
    header = Manifest('a', Boundary('s', 1, 2), FINE, 5.0, tensors, facts).header()
    monkeypatch.setattr(torch, 'empty', lambda *_, **__: pytest.fail('it allocates'))
    folder.refuses(header + bytes(16), message)


@pytest.mark.parametrize(
    ('dtype', 'shape'),
    [('load', [1]), ('nothing', [1]), (7, [1]), ('uint8', 5), ('uint8', ['1']), ('uint8', None)],
)
def test_entry_that_is_not_a_tensor_is_refused(folder, dtype, shape):
    tensors = [entry('x', dtype, shape)]
    folder.refuses(crafted(signed(manifest(tensors=tensors)), b'\0'), 'makes no sense')


@pytest.mark.parametrize(
    'found',
    [
        {'dtype': 'U8', 'shape': [2**44], 'data_offsets': [0, 2**44]},
        {'dtype': 'U8', 'shape': [4], 'data_offsets': [-4, 0]},
        {'dtype': 'I8', 'shape': [4], 'data_offsets': [0, 4]},
        None,
    ],
)
def test_header_that_contradicts_its_manifest_is_refused(folder, found):
    tensors = [entry('x', 'uint8', [4])]
    beside = {} if found is None else {'x': found}
    header = signed(manifest(tensors=tensors), **beside)
    folder.refuses(crafted(header, bytes(4)), 'its header does not match its manifest')


@pytest.mark.parametrize(
    'changes',
    [
        {'boundary': {}},
        {'boundary': {'session': 's', 'number': '1', 'stamp': 2}},
        {'created': 'now'},
        {'facts': []},
        {'facts': entry('x', 'uint8', [2])},
        {'facts': entry('__facts__', 'float32', [2])},
        {'facts': entry('__facts__', 'uint8', [2**30])},
        {'settings': []},
        {'settings': 'seed'},
        {'fingerprint': None},
        {'tensors': {}},
        {'tensors': [{}]},
        {'surplus': 1},
    ],
    ids=str,
)
def test_a_forged_manifest_is_refused(folder, changes):
    folder.refuses(crafted(signed(manifest(**changes))))


def test_manifest_that_is_not_an_object_is_refused(folder):
    for text in ('5', '[]', '[' * 100_000, '{}'):
        folder.refuses(crafted(signed(text)), 'is damaged')


def test_error_of_another_format_names_it(folder):
    folder.refuses(
        crafted(signed({'version': 1, 'other': 'fields'})),
        'has format 1, this version reads 2: drop it, or restore it with the version that wrote',
    )
