"""`unpack(pack(x)) == x`, also for openpi's own bytes; any other message is a CodecError."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from server_cases import packed

from embodied_kv.serving.websocket.codec import CodecError, decode, pack, unpack

DTYPES = ['|b1', '|u1', '<i4', '<i8', '<f4', '<f8', '>f4', '<f2', '<U3']
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda name: arrays.arrays(np.dtype(name), arrays.array_shapes(min_dims=0, max_dims=4))
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text()
VALUES = st.recursive(
    PLAIN | ARRAYS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def same(one, other):
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
        return isinstance(other, np.ndarray) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(VALUES)
def test_unpack_of_pack_equals_the_value(value):
    assert same(value, unpack(pack(value)))


@given(ARRAYS)
def test_an_array_of_openpis_client_is_read(array):
    assert same({'x': array}, unpack(packed({'x': array})))


def of_package(value, as_text):
    """Return a message packed as by the package msgpack_numpy, with keys of bytes or of text."""

    def default(x):
        whole = {b'nd': isinstance(x, np.ndarray), b'type': x.dtype.str, b'data': x.tobytes()}
        if whole[b'nd']:
            whole |= {b'kind': b'', b'shape': x.shape}
        return {key.decode(): value for key, value in whole.items()} if as_text else whole

    return msgpack.packb(value, default=default)


@given(ARRAYS, st.booleans())
def test_an_array_of_the_package_msgpack_numpy_is_read(array, as_text):
    found, is_of_package = decode(of_package({'x': array}, as_text))
    assert same({'x': array}, found) and is_of_package


def test_a_scalar_of_the_package_msgpack_numpy_is_read():
    for scalar in (np.float32(0.5), np.int64(-3), np.bool_(True)):
        found = unpack(of_package(scalar, as_text=False))
        assert (found, found.dtype) == (scalar, scalar.dtype)


@given(ARRAYS)
def test_a_reply_for_the_package_is_read_by_both_kinds_of_clients(array):
    whole = msgpack.unpackb(pack({'x': array}, for_package=True))['x']
    for kind, shape, data in ((b'type', b'shape', b'data'), (b'dtype', b'shape', b'data')):
        found = np.ndarray(whole[shape], np.dtype(whole[kind]), whole[data])
        assert same(array, found)
    assert whole[b'nd'] is True and whole[b'kind'] == b'' and b'__ndarray__' in whole


def test_a_map_that_is_no_array_of_the_package_stays_a_map():
    for value in ({'nd': 1, 'type': 'x'}, {'nd': {}}, {'nd': None}):
        assert decode(msgpack.packb(value)) == (value, False)


def test_scalars_are_read():
    for scalar in (np.float32(0.5), np.int64(-3), np.bool_(True)):
        found = unpack(packed(scalar))
        assert (found, found.dtype) == (scalar, scalar.dtype)
        assert unpack(pack(scalar)) == scalar


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        unpack(data)
    except CodecError:
        pass


@pytest.mark.parametrize('name', ['|O', '|V8', '<c8', '<c16', 'f4,f4', '<M8[s]', '|S3', '()', ''])
def test_other_kinds_are_refused(name):
    array = {b'__ndarray__': True, b'data': bytes(16), b'dtype': name, b'shape': [1]}
    with pytest.raises(CodecError):
        unpack(msgpack.packb(array))
    with pytest.raises(CodecError):
        unpack(msgpack.packb({b'__npgeneric__': True, b'data': 1, b'dtype': name}))


@pytest.mark.parametrize(
    'lie',
    [
        {b'shape': [2]},
        {b'shape': [2**40, 2**40]},
        {b'shape': [-1]},
        {b'shape': [1, 1, 1, 1, 1]},
        {b'shape': None},
        {b'shape': [True]},
        {b'data': 'text'},
        {b'data': None},
        {b'dtype': 'x' * 1000},
        {b'dtype': None},
    ],
    ids=str,
)
def test_inconsistent_array_is_refused(lie):
    array = {b'__ndarray__': True, b'data': bytes(4), b'dtype': '<f4', b'shape': [1]}
    with pytest.raises(CodecError):
        unpack(msgpack.packb(array | lie))


@pytest.mark.parametrize(
    'data, name', [(2.9, '<i4'), (2, '|b1'), ('5', '<i4'), (300, '|u1'), (-1, '<u8'), (1, '<U1')]
)
def test_scalar_that_changes_its_value_is_refused(data, name):
    scalar = {b'__npgeneric__': True, b'data': data, b'dtype': name}
    with pytest.raises(CodecError, match='a scalar must be of'):
        unpack(msgpack.packb(scalar))


@pytest.mark.parametrize('empty', [{}, []], ids=str)
def test_empty_maps_and_lists_take_no_more_memory_than_there_is(empty):
    inner = [empty] * 4000
    assert unpack(msgpack.packb([inner] * 4)) == [inner] * 4
    with pytest.raises(CodecError, match='at most 65536 values'):
        unpack(msgpack.packb([inner] * 1000))


def test_too_deep_too_long_or_unknown_values_are_refused():
    deep = 1
    for _ in range(40):
        deep = [deep]
    for value in (deep, list(range(5000)), {str(n): n for n in range(300)}):
        with pytest.raises(CodecError):
            unpack(msgpack.packb(value))
    for data in (msgpack.packb(msgpack.ExtType(1, b'x')), b'', msgpack.packb(1) * 2):
        with pytest.raises(CodecError):
            unpack(data)
    for value in (object(), np.array([1j]), np.array([None])):
        with pytest.raises(CodecError):
            pack(value)
