"""A stream ends at its token limit in any case; an invalid token id ends only its stream."""

import pytest

from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.manager import LANGUAGE


@pytest.fixture
def engine(make_engine):
    return make_engine(streams=4)


@pytest.fixture
def handle(engine, observe):
    (handle,) = engine.prefill([observe(1)])
    return handle


def finish(engine):
    for _ in range(100):
        if not engine.kv.streams.live():
            break
        engine.decode()
    engine.kv.check_integrity()


def test_a_stream_beyond_its_bound_ends_with_its_next_token(engine, handle):
    stream = engine.kv.create(handle, Query('?', [3, 4], max_tokens=9))
    engine.decode()
    object.__setattr__(stream.query, 'max_tokens', 1)  # bypasses the checks
    engine.kv.streams.grow([stream], 1)
    engine.kv.streams.update([stream], [[7]], eos=1)
    assert stream.reason == 'length' and len(stream.tokens) == 2


@pytest.mark.parametrize('said', [3, 4, 20])
def test_a_stream_that_said_all_it_may_does_not_go_on(engine, handle, said):
    with engine.kv.acquire(handle, LANGUAGE) as lease:
        with pytest.raises(ValueError, match=rf'fewer than 3 tokens, its max_tokens \(got {said}'):
            engine.kv.resume(lease, Query('?', [3], max_tokens=3), [5] * said)
    assert not engine.kv.streams.live()


@pytest.mark.parametrize(
    ('where', 'bad'),
    [(where, bad) for where in ('query', 'tokens') for bad in (-1, 10**6, 2**70)]
    + [('query', bad) for bad in (1.5, None, 'a')],
)
def test_an_id_that_is_no_token_ends_its_stream_alone(engine, handle, where, bad):
    alone = engine.kv.create(handle, Query('?', [3, 4], max_tokens=6))
    finish(engine)
    good = engine.kv.create(handle, Query('?', [3, 4], max_tokens=6))
    engine.decode()
    if where == 'query':
        stream = engine.kv.create(handle, Query('?', [3, bad], max_tokens=6))
    else:
        lease = engine.kv.acquire(handle, LANGUAGE)
        stream = engine.kv.resume(lease, Query('?', [3], max_tokens=6), [5, bad])
    finish(engine)
    assert stream.reason == 'error' and good.reason == alone.reason
    assert good.tokens == alone.tokens
