"""A query that cannot be answered, or not safely, is refused when it is made or opened."""

import math

import pytest
from kv_cases import SIZE, frame, make_manager

from embodied_kv.kv.decode_stream import Query


@pytest.mark.parametrize(
    'wrong, why',
    [
        (dict(ids=()), 'the question must have at least one token'),
        (dict(max_tokens=0), r'max_tokens must be at least 1 \(got 0'),
        (dict(max_tokens=-3), r'max_tokens must be at least 1 \(got -3'),
        (dict(temperature=-0.1), r'temperature must be .* \(got -0.1'),
        (dict(temperature=math.nan), r'temperature must be .* \(got nan'),
        (dict(temperature=math.inf), r'temperature must be .* \(got inf'),
        (dict(seed=-1), r'seed must be .* \(got -1'),
        (dict(seed=2**64), r'seed must be .* \(got 18446744073709551616'),
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
