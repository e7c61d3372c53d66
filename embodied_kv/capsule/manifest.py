"""What the file of a capsule says before its tensors.

It knows the header of a safetensors file, and JSON. It does not know files or folders, and it
never holds the bytes of a tensor.

The header is `{"__metadata__": {"manifest": ..., "checksum": ...}, "part/name": {...}, ...}`: the
manifest is JSON in a string, as safetensors asks of metadata, and the rest follows from it. A
reader builds the header anew from the manifest and compares, so it trusts no size or offset.

Checksums are CRC-32. They are there for accidents: one finds every damage that lies within four
bytes, misses any other once in 2^32, and costs less than the copy beside it (zlib, 4 GB/s where
BLAKE2b makes 0.9). Who can write the folder can write a right checksum too, whatever its kind.

Source: the format, https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import operator
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError, Fact

VERSION = 1
MAX_HEADER = 2**26  # bytes: below what safetensors itself reads, and no allocation to fear
KINDS = {
    'name': str,
    'fingerprint': str,
    'created': int | float,
    'facts': dict,
    'boundary.session': str,
    'boundary.number': int,
    'boundary.stamp': int,
}
METADATA = '__metadata__'
DAMAGED = 'is damaged ({}): drop it'

# The dtypes that every safetensors reader knows; others lie there as plain bytes.
CODES = {
    torch.bool: 'BOOL',
    torch.uint8: 'U8',
    torch.uint16: 'U16',
    torch.uint32: 'U32',
    torch.uint64: 'U64',
    torch.int8: 'I8',
    torch.int16: 'I16',
    torch.int32: 'I32',
    torch.int64: 'I64',
    torch.float8_e4m3fn: 'F8_E4M3',
    torch.float8_e5m2: 'F8_E5M2',
    torch.float16: 'F16',
    torch.bfloat16: 'BF16',
    torch.float32: 'F32',
    torch.float64: 'F64',
}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a capsule. dtype: as torch calls it. checksum: CRC-32 of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    def in_header(self, offset: int) -> dict[str, object]:
        """As safetensors describes a tensor whose bytes start at `offset` after the header."""
        code, shape = CODES.get(self.torch_dtype), list(self.shape)
        if code is None:
            code, shape = CODES[torch.uint8], [self.bytes]
        return {'dtype': code, 'shape': shape, 'data_offsets': [offset, offset + self.bytes]}


@dataclass(frozen=True)
class Manifest:
    """A capsule without its tensors.

    Fields are as in Capsule. tensors: in the order of the file.
    """

    name: str
    boundary: Boundary
    fingerprint: str
    created: float
    facts: Mapping[str, Fact]
    tensors: tuple[TensorEntry, ...]

    def __post_init__(self) -> None:
        for field, kind in KINDS.items():
            value = operator.attrgetter(field)(self)
            if not isinstance(value, kind):
                raise CapsuleError(f'capsule {self.name}: {field} cannot be {value!r}')

    @property
    def bytes(self) -> int:
        """Of all its tensors, as they lie in the file after the header."""
        return sum(entry.bytes for entry in self.tensors)

    def header(self) -> bytes:
        """The start of the file: 8 bytes with the length of the JSON that follows.

        Raises CapsuleError where JSON cannot say what the manifest holds.
        """
        try:
            text = json.dumps({'version': VERSION, **asdict(self)}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CapsuleError(f'capsule {self.name} cannot be told in JSON: {error}') from error
        about = {'manifest': text, 'checksum': f'{zlib.crc32(text.encode()):08x}'}
        header: dict[str, object] = {METADATA: about}
        offset = 0
        for entry in self.tensors:
            header[entry.name] = entry.in_header(offset)
            offset += entry.bytes
        written = json.dumps(header).encode()
        written += b' ' * (-len(written) % 8)  # tensors start aligned
        if len(written) > MAX_HEADER:
            raise CapsuleError(
                f'capsule {self.name}: names and facts take {len(written)} bytes, at most '
                f'{MAX_HEADER} can be kept; large facts should be tensors'
            )
        return len(written).to_bytes(8, 'little') + written


def describe(capsule: Capsule, checksums: Mapping[str, int]) -> Manifest:
    """The manifest of a capsule. checksums: CRC-32 of the bytes, by the names of its tensors.

    Raises CapsuleError where a name or a fact would not come back as it is.
    """
    for name in capsule.tensors:
        if not isinstance(name, str) or not name.isprintable() or name in ('', METADATA):
            raise CapsuleError(f'capsule {capsule.name}: {name!r} cannot name a tensor')
    for part, fact in capsule.facts.items():
        if not _comes_back(part, fact):
            raise CapsuleError(
                f'capsule {capsule.name}: the facts of {part} do not come back from JSON as they '
                'are; use None, bool, int, finite float, str, list and dict with str keys'
            )
    # Wide numbers first, as safetensors wants them: then each lies at a multiple of its own size.
    tensors = sorted(capsule.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    return Manifest(
        capsule.name,
        capsule.boundary,
        capsule.fingerprint,
        capsule.created,
        dict(capsule.facts),
        tuple(
            TensorEntry(name, str(t.dtype).removeprefix('torch.'), tuple(t.shape), checksums[name])
            for name, t in tensors
        ),
    )


def parse(header: bytes) -> Manifest:
    """What `Manifest.header` wrote. Raises CapsuleError that says what the file is instead."""
    try:
        about = json.loads(header[8:])[METADATA]
        text, checksum = about['manifest'], about['checksum']
        found = f'{zlib.crc32(text.encode()):08x}'
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CapsuleError('is not a capsule, or its start is damaged: drop it') from error
    if found != checksum:
        raise CapsuleError(DAMAGED.format('its manifest does not have its checksum'))
    try:
        fields = json.loads(text)
        version = fields.pop('version')
        if version != VERSION:
            raise CapsuleError(f'has format {version}, this version reads {VERSION}: drop it')
        fields['boundary'] = Boundary(**fields['boundary'])
        fields['tensors'] = tuple(_entry(**tensor) for tensor in fields['tensors'])
        manifest = Manifest(**fields)
        as_it_should_be = manifest.header()
    except CapsuleError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CapsuleError(DAMAGED.format('its manifest makes no sense')) from error
    if header != as_it_should_be:
        raise CapsuleError(DAMAGED.format('its header is not what its manifest says'))
    return manifest


def _comes_back(part: object, fact: object) -> bool:
    try:
        return isinstance(part, str) and json.loads(json.dumps(fact, allow_nan=False)) == fact
    except (TypeError, ValueError, RecursionError):
        return False


def _entry(name: str, dtype: str, shape: list[int], checksum: int) -> TensorEntry:
    if not isinstance(getattr(torch, dtype), torch.dtype):
        raise TypeError(f'{dtype} is no dtype')
    if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
        raise ValueError(f'{shape} is no shape')
    return TensorEntry(name, dtype, tuple(shape), checksum)
