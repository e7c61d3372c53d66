"""What crosses the websocket: msgpack with numpy arrays, as openpi's clients write it.

Knows bytes and plain values. Does not know what they mean. Whatever comes from outside is refused
with a reason, and no more memory is taken for it than it brought.

An array is a map of `__ndarray__`, `data` (bytes), `dtype` and `shape`, a scalar one of
`__npgeneric__`, `data` (a plain number) and `dtype`; these keys are bytes.
Source: openpi, openpi_client/msgpack_numpy.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized

import msgpack
import numpy as np

KINDS = 'biufU'  # of numpy: booleans, numbers and words; openpi refuses V, O and c
DTYPE_LENGTH = 8  # characters of its name
DIMENSIONS = 4
ENTRIES = 4096  # of a list
KEYS = 256  # of a map
NESTED = 32
VALUES = 65_536  # of a message, with its maps and lists
PLAIN = {'b': bool, 'i': int, 'u': int, 'f': (int, float), 'U': str}  # a scalar's data, by kind


class CodecError(ValueError):
    """Bytes that are no message; the message says why."""


def pack(value: object) -> bytes:
    """Plain values, arrays and scalars of numpy to bytes. Raises CodecError for others."""
    return msgpack.packb(value, default=_packed)


def unpack(data: bytes) -> object:
    """The inverse of `pack`; arrays are views into the bytes, not to be written. CodecError."""
    counted = _Counted()
    try:
        value = msgpack.unpackb(
            data,
            object_hook=counted.map,
            list_hook=counted.list,
            max_array_len=ENTRIES,
            max_map_len=KEYS,
            max_ext_len=0,
        )
    except CodecError:
        raise
    except Exception as error:  # of msgpack's many kinds, and of what it calls
        reason = str(error) or type(error).__name__
        raise CodecError(f'the message is no msgpack that can be read: {reason}') from error
    _check_depth(value, NESTED)
    return value


def _packed(value: object) -> dict[bytes, object]:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in KINDS:
            raise CodecError(f'arrays of {value.dtype} do not cross')
        name = value.dtype.str
        if isinstance(value, np.ndarray):
            data = value.tobytes()
            return {b'__ndarray__': True, b'data': data, b'dtype': name, b'shape': value.shape}
        return {b'__npgeneric__': True, b'data': value.item(), b'dtype': name}
    raise CodecError(f'a {type(value).__name__} does not cross')


class _Counted:
    """Maps and lists as they are read: an empty one is a byte of a message, and 64 of memory."""

    def __init__(self) -> None:
        self._left = VALUES

    def map(self, found: dict) -> object:
        self._count(found)
        return _unpacked(found)

    def list(self, found: list) -> list:
        self._count(found)
        return found

    def _count(self, found: Sized) -> None:
        self._left -= 1 + len(found)
        if self._left < 0:
            raise CodecError(f'the message has more than {VALUES} values: send arrays')


def _unpacked(found: dict) -> object:
    if b'__ndarray__' in found:
        return _array(found, found.get(b'shape'))
    if b'__npgeneric__' in found:
        return _scalar(found)
    return found


def _scalar(found: Mapping) -> np.generic:
    data, dtype = found.get(b'data'), _dtype(found.get(b'dtype'))
    if isinstance(data, PLAIN[dtype.kind]):
        try:
            scalar = dtype.type(data)
        except (ValueError, OverflowError, TypeError):
            scalar = None
        if dtype.kind == 'f' or scalar == data:
            return scalar
    raise CodecError(f'{str(data)[:80]!r} is no scalar of {dtype}')


def _array(found: Mapping, shape: object) -> np.ndarray:
    """Raises CodecError unless kind, shape and bytes agree."""
    data, dtype = found.get(b'data'), _dtype(found.get(b'dtype'))
    if not isinstance(shape, list) or len(shape) > DIMENSIONS or not all(map(_is_size, shape)):
        raise CodecError(f'an array of shape {str(shape)[:80]}: write up to {DIMENSIONS} sizes')
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        had = f'{len(data)} bytes' if isinstance(data, bytes) else type(data).__name__
        raise CodecError(f'an array of {dtype} {shape} comes with {had}')
    return np.ndarray(shape, dtype, data)


def _dtype(name: object) -> np.dtype:
    if isinstance(name, bytes):
        name = name.decode('ascii', 'replace')
    if not isinstance(name, str) or len(name) > DTYPE_LENGTH:
        raise CodecError(f'an array of dtype {str(name)[:80]!r}: write one such as <f4')
    try:
        dtype = np.dtype(name)
    except Exception as error:  # TypeError, SyntaxError and others, by what it tries to parse
        raise CodecError(f'an array of dtype {name!r}: write one such as <f4') from error
    if dtype.kind not in KINDS or dtype.shape or not dtype.itemsize:
        raise CodecError(f'arrays of {name!r} are refused: send numbers')
    return dtype


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _check_depth(value: object, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if not left:
        raise CodecError(f'the message is nested deeper than {NESTED}')
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, left - 1)
