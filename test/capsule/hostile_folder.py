"""A folder with one good capsule and one file to damage, for the tests of hostile files."""

import json
import zlib

import pytest
import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.disk import Disk

FINE = 'fine'


def capsule(name='a', floats=16):
    tensors = {
        'arena/k': torch.randn(floats).bfloat16(),
        'rows/length': torch.arange(3),
        'tail': torch.empty(0, 4),
    }
    facts = {'action': {'seed': 7, 'left': [0.5, -1.0]}}
    return Capsule(name, Boundary('s', 1, 2), FINE, tensors, facts, 5.0)


def crafted(header, data=b'', length=None):
    """Return the bytes of a capsule file with padding. length: the stated header length."""
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    text += b' ' * (-len(text) % 8)
    length = len(text) if length is None else length
    return length.to_bytes(8, 'little') + text + data


def signed(manifest, **tensors):
    """Return a header with the right checksum. tensors: entries in addition to the manifest."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    about = {'manifest': text, 'checksum': f'{zlib.crc32(text.encode()):08x}'}
    return {'__metadata__': about, **tensors}


def entry(name, dtype, shape):
    """Return a tensor's entry in a manifest."""
    return {'name': name, 'dtype': dtype, 'shape': shape, 'checksum': '00000000'}


def manifest(**changes):
    return {
        'version': 2,
        'name': 'a',
        'boundary': {'session': 's', 'number': 1, 'stamp': 2},
        'fingerprint': FINE,
        'settings': {},
        'created': 5.0,
        'tensors': [],
        'facts': entry('__facts__', 'uint8', [2]),
        **changes,
    }


class Folder:
    """A good capsule `kept` and a file `a` that may have any content."""

    def __init__(self, folder):
        self.disk = Disk(folder)
        self.disk.save(capsule('kept'))
        self.disk.save(capsule())
        self.path = folder / 'a.safetensors'
        self.good = self.path.read_bytes()

    def refuses(self, content, match=None):
        if content is not None:
            self.path.write_bytes(content)
        with pytest.raises(CapsuleError, match=match) as caught:
            self.disk.load('a', FINE)
        message = str(caught.value)
        assert str(self.path) in message and '\n' not in message
        return message

    def keeps(self):
        self.disk.load('kept', FINE)
        assert 'kept' in [entry.name for entry in self.disk.entries()]
