"""A new stream begins only if the measured cost of queries of its length fits the idle time."""

import time

import pytest

from embodied_kv.engine.warmup import warm_up

SHORT, LONG = 'what?', 'w' * 60  # buckets of 8 and 64 tokens


@pytest.fixture
def engine(make_engine):
    """Return an engine: short queries cost 1 ms, long ones 50 ms; the idle time is 20 ms."""
    engine = make_engine(time_budget=True)
    for _ in range(3):
        engine.latency.observe('begin', 0.001, 8)
        engine.latency.observe('begin', 0.050, 64)
    return engine


@pytest.mark.parametrize('text, fits', [(SHORT, True), (LONG, False)])
def test_it_begins_only_if_a_query_of_its_length_fits(engine, observe, text, fits):
    (handle,) = engine.prefill([observe(1)])
    now = engine.budget._last_frame + engine.budget.period - engine.budget.margin - 0.020
    engine.open(handle, text, max_tokens=4)
    assert engine.decode_fits(now) == fits


def test_one_that_does_not_fit_delays_no_other(engine, observe):
    (handle,) = engine.prefill([observe(1)])
    first = engine.open(handle, SHORT, max_tokens=4)
    engine.decode()
    now = engine.budget._last_frame + engine.budget.period - engine.budget.margin - 0.020
    waiting = engine.open(handle, LONG, max_tokens=4)
    assert engine.next_batch() == ([waiting], True)  # the next one, if there is enough time
    assert engine.decode_fits(now) and engine.next_batch(now) == ([first], False)
    short = engine.open(handle, SHORT, max_tokens=4)
    assert engine.next_batch(now) == ([short], True)


def test_what_was_measured_counts_for_its_length(engine, observe, monkeypatch):
    (handle,) = engine.prefill([observe(1)])
    engine.latency.clear()
    began = time.monotonic()
    for text in (SHORT, LONG):
        engine.open(handle, text, max_tokens=4)
        engine.decode()
    assert set(engine.latency._measured['begin']) == {8, 64}
    assert max(engine.latency.estimate('begin', 8), engine.latency.estimate('begin', 64)) <= (
        time.monotonic() - began
    )


@pytest.mark.parametrize(
    'decode_tokens, sizes', [(96, {8, 16, 32, 64, 96}), (8, {8}), (20, {8, 16, 20})]
)
def test_warm_up_measures_short_and_long_ones(make_engine, decode_tokens, sizes):
    engine = make_engine(time_budget=True, decode_tokens=decode_tokens)
    warm_up(engine)
    assert set(engine.latency._measured['begin']) == sizes
    assert engine.kv.stats().streams == 0 and engine.deltas() == []
