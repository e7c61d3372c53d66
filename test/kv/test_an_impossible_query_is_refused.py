"""A query that cannot be answered, or not safely, is refused when it is made or opened."""

import math

import pytest
from kv_cases import SIZE, frame, make_manager

from embodied_kv.kv.decode_stream import Query


@pytest.mark.parametrize(
    'wrong, why',
    [
        (dict(ids=()), 'no tokens'),
        (dict(max_tokens=0), 'max_tokens is 0'),
        (dict(max_tokens=-3), 'max_tokens is -3'),
        (dict(temperature=-0.1), 'temperature is -0.1'),
        (dict(temperature=math.nan), 'temperature is nan'),
        (dict(temperature=math.inf), 'temperature is inf'),
        (dict(seed=-1), 'seed is -1'),
        (dict(seed=2**64), 'seed is 18446744073709551616'),
    ],
)
def test_it_says_what_is_wrong(wrong, why):
    with pytest.raises(ValueError, match=why):
        Query(**{'text': '?', 'ids': (3,), 'max_tokens': 4} | wrong)


def test_the_bounds_themselves_are_allowed():
    Query('?', (3,), max_tokens=1, temperature=0.0, seed=0)
    Query('?', (3,), max_tokens=1, temperature=1e-300, seed=2**64 - 1)


@pytest.mark.parametrize('tokens', [1, 7, 15])
def test_query_and_answer_fill_a_decode_row_to_the_last_token(tokens):
    kv = make_manager(3, 2)
    handle = frame(kv)
    most = SIZE['max_tokens'] - tokens
    with pytest.raises(ValueError, match=f'{tokens} tokens .* {most + 1} do not fit .* 16 tokens'):
        kv.create(handle, Query('?', [3] * tokens, most + 1))
    assert kv.stats().leases == 0
    stream = kv.create(handle, Query('?', [3] * tokens, most))
    while not stream.reason:
        kv.streams.update(kv.streams.grow([stream], tokens if stream.is_new else 1), [[9]], eos=1)
        kv.check_integrity()
        assert kv.decode_kv.lengths.max() <= SIZE['max_tokens']
    assert stream.reason == 'length' and len(stream.tokens) == most
