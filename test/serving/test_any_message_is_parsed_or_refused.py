"""The server parses any message, or refuses it with CodecError or RefusedError."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_cases import libero, packed

from embodied_kv.robots.reading import load
from embodied_kv.serving.websocket import calls, codec
from embodied_kv.serving.websocket.observation_parser import ObservationParser, RefusedError

DIALECT = ObservationParser(load('libero'))
LAST = (0x10FFFF).to_bytes(4, 'little')
WISHES = {
    'session_id': 'a',
    'request_id': 'q',
    'leftover': np.zeros((3, 7)),
    'leftover_delay': 1,
    'euler_steps': 4,
    'deadline_ms': 5.0,
}
SIZES = st.sampled_from([0, 1, 2, 3, 8, -1, 2**30, 2**31 - 1, 2**31, 2**62, True, 1.0, None])
DTYPES = st.sampled_from(
    '<f8 f4 >f8 <f2 <f16 O V8 <M8[s] <m8 i4,i4 (2,)i4 S8 U >U1 <U1 <U3 c16 b ? |b1 B float H, {'
    ' =f8 |u1 str <U99999 <f10'.split()
) | st.text(max_size=6)
DATA = st.binary(max_size=64) | st.sampled_from([b'\xff' * 4, b'\xff' * 64, LAST, b'\1' * 8, b''])
SHAPES = st.lists(SIZES, max_size=5)
ODD = st.sampled_from([None, True, -1, 2**64 - 1, float('nan'), float('inf'), b'\xff', b'go', ''])


def either(keys):
    """Generate the map with keys of bytes or of text."""
    return st.fixed_dictionaries(keys) | st.fixed_dictionaries(
        {key.decode(): value for key, value in keys.items()}
    )


def mostly(usual, odd=ODD):
    return st.one_of(usual, usual, usual, odd)


MARKED = st.one_of(
    either(
        {
            b'__ndarray__': st.just(True),
            b'data': mostly(DATA),
            b'dtype': mostly(DTYPES),
            b'shape': mostly(SHAPES),
        }
    ),
    either({b'__npgeneric__': st.just(True), b'data': mostly(ODD), b'dtype': DTYPES}),
    either(
        {
            b'nd': st.booleans() | ODD,
            b'type': mostly(DTYPES),
            b'kind': st.sampled_from([b'', b'V', b'O', '']),
            b'data': mostly(DATA),
            b'shape': mostly(SHAPES),
        }
    ),
)
VALUES = st.recursive(
    ODD | MARKED | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def read(data):
    """Read a message as the server does; return the reason of a refusal, or ''."""
    try:
        request = codec.unpack(data)
        if isinstance(request, dict):
            calls.read(request)
            DIALECT.read(request)
    except (codec.CodecError, RefusedError) as error:
        return str(error)
    return ''


def test_unchanged_request_is_valid():
    assert read(packed(libero() | WISHES)) == ''


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([*libero(), *WISHES, 'more']), VALUES, min_size=1))
def test_any_value_of_any_key_is_read_or_refused(changes):
    read(packed(libero() | WISHES | changes))


@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_changed_byte_is_read_or_refused(changes):
    small = {'observation/state': np.zeros(8), 'prompt': 'x'} | WISHES
    data = bytearray(packed(small))
    for place, value in changes:
        data[place % len(data)] = value
    read(bytes(data))


def marked(dtype, data, shape):
    return {b'__ndarray__': True, b'data': data, b'dtype': dtype, b'shape': shape}


@pytest.mark.parametrize(
    'key, value, said',
    [
        ('prompt', marked('<U1', b'\xff' * 4, []), 'code point 0xffffffff'),
        ('prompt', marked('>U1', LAST, []), 'code point 0xffff1000'),
        ('request_id', marked('<U1', b'\0\0\x11\0', []), 'code point 0x110000'),
        ('leftover', marked('<f8', b'', [0, 2**30, 2**30]), 'at most 2147483648 elements'),
        ('observation/state', marked('|b1', b'', [2**31 - 1, 0, 2]), 'at most 2147483648'),
        ('prompt', [[], [[]]], 'got list'),
        ('prompt', {b'nd': True, b'type': [['a', '<f4']], b'data': b'', b'shape': []}, 'dtype'),
        (
            'prompt',
            {b'nd': True, b'type': '|O', b'data': b'', b'shape': []},
            'numbers or text',
        ),
        ('prompt', {b'nd': False, b'type': '<f4', b'data': 1}, 'got int'),
    ],
    ids=lambda value: str(value)[:50],
)
def test_former_unexpected_values_are_refused(key, value, said):
    assert said in read(packed(libero() | {key: value}))


def test_error_text_is_short():
    for value in (bytes(10**6), 'x' * 10**6, [[0] * 1000] * 16, {str(n): n for n in range(200)}):
        lie = marked('<f4', value, value)
        with pytest.raises(codec.CodecError) as told:
            codec.unpack(msgpack.packb(lie))
        assert len(str(told.value)) < 300
