"""The header of a capsule file.

The header is `{"__metadata__": {"manifest": ..., "checksum": ...}, "part/name": {...}, ...}`. The
manifest is JSON in a string, as safetensors requires of metadata. It determines the rest: a reader
builds the header again from the manifest and compares the two, so it trusts no size or offset. The
facts follow the tensors as the bytes of one more tensor, so listing capsules reads none of them.

Checksums are CRC-32 and detect accidental damage. A CRC-32 detects every damage within four bytes,
misses any other once in 2^32, and costs less than the copy that goes with it (zlib: 4 GB/s;
BLAKE2b: 0.9 GB/s). No kind of checksum protects against a process that can write the folder.

Source: the format, https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import builtins
import json
import math
import operator
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from embodied_kv.capsule.facts import MAX_FACTS, CapsuleError
from embodied_kv.capsule.fingerprint import Fingerprint
from embodied_kv.errors import ErrorCode

VERSION = 2
MAX_HEADER = 2**24  # bytes: below the limit of safetensors, and a harmless allocation
KINDS = {
    'name': str,
    'fingerprint': str,
    'created': int | float,
    'boundary.session': str,
    'boundary.number': int,
    'boundary.stamp': int,
}
FACTS = '__facts__'  # the name of the tensor that holds the facts
METADATA = '__metadata__'

# The dtypes that every safetensors reader knows; others are stored as plain bytes.
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


def damaged(why: object) -> CapsuleError:
    """Return the error of a damaged file; its message continues a sentence about the file."""
    return CapsuleError(f'is damaged ({why}): drop it', ErrorCode.DAMAGED)


@dataclass(frozen=True)
class Boundary:
    """The name of a session, its committed steps, and the stamp (ns) of its newest observation."""

    session: str
    number: int
    stamp: int


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a capsule: its name, torch dtype, shape, and the CRC-32 of its bytes."""

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

    def in_manifest(self) -> dict[str, object]:
        """Return the fields; the checksum has 8 hex digits, so that no length depends on it."""
        return {**asdict(self), 'checksum': f'{self.checksum:08x}'}

    def in_header(self, offset: int) -> dict[str, object]:
        """Return the safetensors entry of a tensor that starts `offset` bytes after the header."""
        code, shape = CODES.get(self.torch_dtype), list(self.shape)
        if code is None:
            code, shape = CODES[torch.uint8], [self.bytes]
        return {'dtype': code, 'shape': shape, 'data_offsets': [offset, offset + self.bytes]}


@dataclass(frozen=True)
class Manifest:
    """A capsule without the contents of its tensors and facts.

    Attributes:
        tensors: In the order of the file.
        facts: The tensor that holds the facts; it comes last.
    """

    name: str
    boundary: Boundary
    fingerprint: str
    created: float
    tensors: tuple[TensorEntry, ...]
    facts: TensorEntry

    def __post_init__(self) -> None:
        for field, kind in KINDS.items():
            value = operator.attrgetter(field)(self)
            if not isinstance(value, kind):
                raise CapsuleError(f'capsule {self.name}: {field} cannot be {value!r}')

    @property
    def entries(self) -> tuple[TensorEntry, ...]:
        """Return the tensors and the facts, in the order of the file."""
        return *self.tensors, self.facts

    @property
    def payload(self) -> int:
        """Return the number of bytes after the header."""
        return sum(entry.bytes for entry in self.entries)

    @cached_property
    def bytes(self) -> int:
        """Return the size of the file."""
        return len(self.header()) + self.payload

    def header(self) -> builtins.bytes:
        """Return the start of the file: 8 bytes with the length of the JSON, then the JSON.

        Raises CapsuleError for a manifest that JSON cannot express.
        """
        about = {
            'version': VERSION,
            'name': self.name,
            'boundary': asdict(self.boundary),
            'fingerprint': self.fingerprint,
            'settings': getattr(self.fingerprint, 'settings', {}),
            'created': self.created,
            'tensors': [entry.in_manifest() for entry in self.tensors],
            'facts': self.facts.in_manifest(),
        }
        try:
            text = json.dumps(about, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CapsuleError(
                f'capsule {self.name} cannot be written as JSON: {error}'
            ) from error
        about = {'manifest': text, 'checksum': f'{zlib.crc32(text.encode()):08x}'}
        header: dict[str, object] = {METADATA: about}
        offset = 0
        for entry in self.entries:
            header[entry.name] = entry.in_header(offset)
            offset += entry.bytes
        written = json.dumps(header).encode()
        written += b' ' * (-len(written) % 8)  # tensors start aligned
        if len(written) > MAX_HEADER:
            raise CapsuleError(
                f'capsule {self.name}: names of tensors and settings must take at most '
                f'{MAX_HEADER} bytes (got {len(written)}); join tensors'
            )
        return len(written).to_bytes(8, 'little') + written


def parse(header: bytes) -> Manifest:
    """Return the manifest that `Manifest.header` wrote. Raises CapsuleError."""
    try:
        about = json.loads(header[8:])[METADATA]
        text, checksum = about['manifest'], about['checksum']
        found = f'{zlib.crc32(text.encode()):08x}'
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CapsuleError(
            'is not a capsule, or its start is damaged: drop it', ErrorCode.DAMAGED
        ) from error
    if found != checksum:
        raise damaged('its manifest does not have its checksum')
    try:
        fields = json.loads(text)
        version = fields.pop('version')
        if version != VERSION:
            raise CapsuleError(
                f'has format {version}, this version reads {VERSION}: drop it, or restore it with '
                'the version that wrote it',
                ErrorCode.MISMATCH,
            )
        fields['boundary'] = Boundary(**fields['boundary'])
        fields['tensors'] = tuple(_entry(**tensor) for tensor in fields['tensors'])
        fields['facts'] = _checked_facts(_entry(**fields['facts']))
        digits, settings = fields['fingerprint'], fields.pop('settings')
        if settings:
            fields['fingerprint'] = Fingerprint(digits, settings)
        manifest = Manifest(**fields)
        expected = manifest.header()
    except CapsuleError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged('its manifest makes no sense') from error
    if header != expected:
        raise damaged('its header does not match its manifest')
    return manifest


def _entry(name: str, dtype: str, shape: list[int], checksum: str) -> TensorEntry:
    if not isinstance(getattr(torch, dtype), torch.dtype):
        raise TypeError(f'{dtype} is no dtype')
    if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
        raise ValueError(f'{shape} is no shape')
    return TensorEntry(name, dtype, tuple(shape), int(checksum, 16))


def _checked_facts(entry: TensorEntry) -> TensorEntry:
    if (entry.name, entry.dtype, len(entry.shape)) != (FACTS, 'uint8', 1):
        raise ValueError('the facts are no bytes')
    if entry.bytes > MAX_FACTS:
        raise ValueError(f'{entry.bytes} bytes of facts')
    return entry
