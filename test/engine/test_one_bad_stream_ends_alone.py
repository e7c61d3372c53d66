"""A stream that fails ends with its reason; the other streams of its batch are unaffected."""

import math

import pytest

QUESTIONS = 'what?', 'where is it?', 'why?'


def answers(engine, observe, disturb=lambda engine, streams: None, **how):
    (handle,) = engine.prefill([observe(1)])
    streams = [engine.open(handle, text, max_tokens=8, **how) for text in QUESTIONS]
    for _ in streams:
        engine.decode()
    disturb(engine, streams)
    while engine.kv.streams.live():
        engine.decode()
    engine.kv.check_integrity()
    assert engine.kv.stats().leases == 0
    return [(stream.tokens, stream.reason) for stream in streams]


@pytest.mark.parametrize('how', [dict(), dict(temperature=0.8, seed=3)])
def test_whose_logits_are_not_numbers(make_engine, observe, monkeypatch, how):
    wanted = answers(make_engine(), observe, **how)

    def disturb(engine, streams):
        extend = engine.policy.model.extend

        def broken(ids, view):
            logits = extend(ids, view).clone()
            logits[1] = math.nan
            monkeypatch.undo()
            return logits

        monkeypatch.setattr(engine.policy.model, 'extend', broken)

    first, bad, last = answers(make_engine(), observe, disturb, **how)
    assert (first, last) == (wanted[0], wanted[2])
    assert bad == (wanted[1][0][:1], 'error')


def test_whose_token_cannot_be_drawn(make_engine, observe, caplog):
    wanted = answers(make_engine(), observe, temperature=0.8)

    def disturb(engine, streams):
        object.__setattr__(streams[1].query, 'seed', -1)  # bypasses every check

    first, bad, last = answers(make_engine(), observe, disturb, temperature=0.8)
    assert (first, last) == (wanted[0], wanted[2])
    assert bad == (wanted[1][0][:1], 'error')
    assert 'Stream 2 ended' in caplog.text


def test_whose_query_cannot_be_appended(make_engine, observe, monkeypatch):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    good, bad = (engine.open(handle, text, max_tokens=8) for text in QUESTIONS[:2])
    engine.decode()
    monkeypatch.setattr(engine._decoder, 'begin', lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.decode()
    assert (good.reason, bad.reason) == ('', 'error')
    assert [delta.reason for delta in engine.decode()] == ['', 'error']
    engine.kv.check_integrity()


def test_the_coldest_temperature_is_greedy(make_engine, observe):
    greedy = answers(make_engine(), observe)
    assert answers(make_engine(), observe, temperature=1e-300) == greedy


@pytest.mark.parametrize('how', [dict(seed=-1), dict(temperature=math.nan), dict(max_tokens=0)])
def test_an_impossible_one_is_not_opened(make_engine, observe, how):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    with pytest.raises(ValueError, match=f'{next(iter(how))} must be'):
        engine.open(handle, 'what?', **how)
    assert engine.kv.streams.live() == []
