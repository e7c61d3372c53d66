"""The binary messages of the protocol: msgpack with numpy arrays, as openpi's clients write it.

Each message is validated. Decoded arrays are views of the message, and its values are counted, so
that a small message cannot take much memory.

An array is a map of `__ndarray__`, `data` (bytes), `dtype` and `shape`, a scalar a map of
`__npgeneric__`, `data` (a plain number) and `dtype`; these keys are bytes.
Source: openpi, openpi_client/msgpack_numpy.py.

Some clients use the package `msgpack_numpy` instead. Its arrays are maps of `nd` (true), `type`,
`kind`, `shape` and `data`, its scalars of `nd` (false), `type` and `data`; `data` are bytes, and
the keys are bytes or text. `decode` reports whether a message has such arrays, and `pack` then
writes maps that both kinds of clients read.
Source: msgpack_numpy.py of msgpack-numpy 0.4.8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

import msgpack
import numpy as np

KINDS = 'biufU'  # of numpy: booleans, numbers and text; openpi refuses V, O and c
DTYPE_LENGTH = 8  # characters of its name
DIMENSIONS = 4
ELEMENTS = 2**31  # of an array, counting sizes of zero as one: the limit of numpy
LAST_CODE_POINT = 0x10FFFF  # of Unicode
ENTRIES = 4096  # of a list
KEYS = 256  # of a map
NESTED = 32
VALUES = 65_536  # of a message, with its maps and lists
MARKS = b'nd', 'nd'  # keys of the arrays and scalars of the package msgpack_numpy
# The types of a scalar's data, by kind.
PLAIN: Mapping[str, type | tuple[type, ...]]
PLAIN = {'b': bool, 'i': int, 'u': int, 'f': (int, float), 'U': str}


class CodecError(ValueError):
    """A message that is not valid, or a value that cannot be packed, with the reason."""


def pack(value: object, for_package: bool = False) -> bytes:
    """Return the bytes of plain values, arrays and scalars. Raises CodecError for other types.

    `for_package`: the package msgpack_numpy must be able to read the arrays too.
    """
    return msgpack.packb(value, default=_packed_for_both if for_package else _packed)


def unpack(data: bytes) -> Any:
    """Return the value of packed bytes; its arrays are read-only views. Raises CodecError."""
    return decode(data)[0]


def decode(data: bytes) -> tuple[object, bool]:
    """Return the value of a message, and whether it has arrays of the package msgpack_numpy.

    Arrays are read-only views into the bytes. Raises CodecError.
    """
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
    except Exception as error:  # msgpack and its hooks raise many types
        reason = str(error) or type(error).__name__
        raise CodecError(f'the message must be msgpack (got: {reason})') from error
    _check_depth(value, NESTED)
    return value, counted.of_package


def _packed(value: object) -> dict[bytes, object]:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in KINDS:
            raise CodecError(f'arrays must be numbers or text (got {value.dtype})')
        name = value.dtype.str
        if isinstance(value, np.ndarray):
            data = value.tobytes()
            return {b'__ndarray__': True, b'data': data, b'dtype': name, b'shape': value.shape}
        return {b'__npgeneric__': True, b'data': value.item(), b'dtype': name}
    raise CodecError(f'values must be plain or of numpy (got {type(value).__name__})')


def _packed_for_both(value: object) -> dict[bytes, object]:
    packed = _packed(value)
    if isinstance(value, np.ndarray):
        packed |= {b'nd': True, b'type': value.dtype.str, b'kind': b''}
    return packed


class _Counted:
    """Hooks that count values: an empty map is one byte of a message, but 64 bytes of memory."""

    def __init__(self) -> None:
        self._left = VALUES
        self.of_package = False  # whether an array or a scalar was one of msgpack_numpy

    def map(self, found: dict) -> object:
        self._count(found)
        if b'__ndarray__' in found:
            return _array(found.get(b'data'), found.get(b'dtype'), found.get(b'shape'))
        if b'__npgeneric__' in found:
            return _scalar(found)
        for mark in MARKS:
            if isinstance(found.get(mark), bool):
                self.of_package = True
                return _of_package(found, mark)
        return found

    def list(self, found: list) -> list:
        self._count(found)
        return found

    def _count(self, found: Sized) -> None:
        self._left -= 1 + len(found)
        if self._left < 0:
            raise CodecError(f'the message must have at most {VALUES} values; send arrays')


def _of_package(found: Mapping, mark: bytes | str) -> np.ndarray | np.generic:
    keys = 'data', 'type', 'shape'
    data, dtype, shape = (
        found.get(key.encode() if isinstance(mark, bytes) else key) for key in keys
    )
    return _array(data, dtype, shape) if found[mark] else _array(data, dtype, [])[()]


def _scalar(found: Mapping) -> np.generic:
    data, dtype = found.get(b'data'), _dtype(found.get(b'dtype'))
    if isinstance(data, PLAIN[dtype.kind]):
        try:
            scalar = dtype.type(data)
        except (ValueError, OverflowError, TypeError):
            scalar = None
        if dtype.kind == 'f' or scalar == data:
            return scalar
    raise CodecError(f'a scalar must be of {dtype} (got {_brief(data)})')


def _array(data: object, name: object, shape: object) -> np.ndarray:
    dtype = _dtype(name)
    if not isinstance(shape, list) or len(shape) > DIMENSIONS or not all(map(_is_size, shape)):
        raise CodecError(
            f'the shape of an array must be up to {DIMENSIONS} sizes (got {_brief(shape)})'
        )
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        had = f'{len(data)} bytes' if isinstance(data, bytes) else type(data).__name__
        raise CodecError(f'an array of {dtype} {shape} must have its bytes (got {had})')
    if math.prod(max(1, size) for size in shape) > ELEMENTS:
        raise CodecError(f'an array of shape {shape} must have at most {ELEMENTS} elements')
    if dtype.kind == 'U' and data:
        points = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if points.max() > LAST_CODE_POINT:
            raise CodecError(
                f'an array of {dtype} must hold Unicode text (got the code point '
                f'{points.max():#x}); send text as UTF-8'
            )
    return np.ndarray(shape, dtype, data)


def _dtype(name: object) -> np.dtype:
    if isinstance(name, bytes):
        name = name.decode('ascii', 'replace')
    if not isinstance(name, str) or len(name) > DTYPE_LENGTH:
        raise CodecError(f'the dtype of an array must be one such as <f4 (got {_brief(name)})')
    try:
        dtype = np.dtype(name)
    except Exception as error:  # TypeError, SyntaxError and others
        raise CodecError(
            f'the dtype of an array must be one such as <f4 (got {name!r})'
        ) from error
    if dtype.kind not in KINDS or dtype.shape or not dtype.itemsize:
        raise CodecError(f'arrays must be numbers or text (got {name!r})')
    return dtype


def _brief(value: object) -> str:
    if isinstance(value, list) and len(value) <= 16:
        return f'[{", ".join(map(_brief_one, value))}]'
    return _brief_one(value)


def _brief_one(value: object) -> str:
    plain = isinstance(value, int | float | None) or (
        isinstance(value, bytes | str) and len(value) <= 80
    )
    return repr(value) if plain else type(value).__name__


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _check_depth(value: object, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if not left:
        raise CodecError(f'the message must be nested at most {NESTED} deep')
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, left - 1)
