"""The bytes of a capsule, in a file or in a message between two servers.

A file is read through a descriptor and never mapped: the checked bytes are those returned.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import Capsule, CapsuleError
from embodied_kv.capsule.facts import Fact, decode
from embodied_kv.capsule.fingerprint import mismatch
from embodied_kv.capsule.manifest import FACTS, MAX_HEADER, Manifest, TensorEntry, damaged, parse
from embodied_kv.errors import ErrorCode
from embodied_kv.kv import transfer


def parts(capsule: Capsule) -> tuple[Manifest, Sequence[bytes | memoryview]]:
    """Return the manifest of a capsule, and its bytes in order. Raises CapsuleError."""
    facts = capsule.encoded_facts
    contents = {name: _bytes(capsule, name) for name in capsule.tensors}
    checksums = {name: zlib.crc32(data) for name, data in contents.items()}
    manifest = capsule.manifest(checksums, zlib.crc32(facts))
    tensors = [contents[entry.name] for entry in manifest.tensors]
    return manifest, [manifest.header(), *tensors, facts]


def packed(capsule: Capsule) -> bytes:
    """Return the bytes of the file of a capsule. Raises CapsuleError."""
    return b''.join(parts(capsule)[1])


def unpacked(data: bytes, fingerprint: str) -> Capsule:
    """Return the capsule of `packed` bytes, in new host memory.

    Raises CapsuleError for other bytes, and for a fingerprint other than this engine's.
    """
    with os.fdopen(os.memfd_create('capsule', os.MFD_CLOEXEC), 'w+b', buffering=0) as stream:
        left = memoryview(data)
        while left:  # one write moves 2 GB at most
            left = left[stream.write(left) :]
        stream.seek(0)
        try:
            return read(stream, fingerprint)
        except CapsuleError as error:
            raise CapsuleError(f'the capsule {error}', error.code) from error


def read(stream: BinaryIO, fingerprint: str, name: str = '') -> Capsule:
    """Return the capsule of a stream, in new host memory.

    Args:
        stream: An open file.
        fingerprint: This engine's. Tensors of a capsule with another one are not read.
        name: The required name; '' for any.

    Raises:
        CapsuleError: The message continues a sentence whose subject is the stream.
    """
    manifest = read_manifest(stream, name)
    if manifest.fingerprint != fingerprint:
        problem = mismatch(manifest.fingerprint, fingerprint)
        raise CapsuleError(problem, ErrorCode.MISMATCH)
    tensors, at = {}, stream.tell()
    for entry in manifest.entries:
        tensors[entry.name] = _read_tensor(stream, entry, at)
        at += entry.bytes
    facts = _decoded(tensors.pop(FACTS))
    about = manifest.boundary, manifest.fingerprint
    return Capsule(manifest.name, *about, tensors, facts, manifest.created)


def _bytes(capsule: Capsule, name: str) -> memoryview:
    tensor = capsule.tensors[name]
    try:
        return transfer.plain_bytes(tensor).data
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CapsuleError(
            f'capsule {capsule.name}: {name} ({tensor.dtype}, {tensor.layout}, {tensor.device}) '
            f'has no plain bytes to keep: {reason}'
        ) from error


def _read(stream: BinaryIO, data: bytearray, offset: int) -> None:
    try:
        transfer.read(stream.fileno(), data, offset)
    except transfer.DamagedFileError as fault:
        raise damaged(fault) from fault


def read_manifest(stream: BinaryIO, name: str = '') -> Manifest:
    """Return the manifest of a stream, and leave the stream at its first tensor.

    Memory is allocated only for bytes that the file holds. name: the required one; '' for any.
    """
    size = os.fstat(stream.fileno()).st_size
    start = bytearray(min(size, 9))
    _read(stream, start, 0)
    length = 8 + int.from_bytes(start[:8], 'little')
    if len(start) == 9 and (start[8:] != b'{' or length > 8 + MAX_HEADER):
        raise CapsuleError('is not a capsule, or its start is damaged: drop it', ErrorCode.DAMAGED)
    if len(start) < 9 or length > size:
        raise CapsuleError(f'is truncated, it has {size} bytes: drop it', ErrorCode.DAMAGED)
    header = bytearray(length)
    _read(stream, header, 0)
    manifest = parse(bytes(header))
    if name and manifest.name != name:
        raise CapsuleError(
            f'holds the capsule {manifest.name}: give it that name again', ErrorCode.DAMAGED
        )
    whole = length + manifest.payload
    if size < whole:
        raise CapsuleError(
            f'is truncated, it has {size} of {whole} bytes: drop it', ErrorCode.DAMAGED
        )
    if size > whole:
        raise damaged(f'it has {size} bytes, {whole} belong to it')
    stream.seek(length)
    return manifest


def _read_tensor(stream: BinaryIO, entry: TensorEntry, at: int) -> Tensor:
    try:
        plain = transfer.read_tensor(
            stream.fileno(), at, (entry.bytes,), torch.uint8, entry.checksum, entry.name
        )
        return plain.view(entry.torch_dtype).reshape(entry.shape)
    except transfer.DamagedFileError as fault:
        raise damaged(fault) from fault
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CapsuleError(
            f'cannot be loaded: {entry.name} takes {entry.bytes} bytes of memory; {reason}',
            ErrorCode.NO_ROOM,
        ) from error


def _decoded(facts: Tensor) -> dict[str, Fact]:
    try:
        return decode(facts.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise damaged('its facts make no sense') from error
