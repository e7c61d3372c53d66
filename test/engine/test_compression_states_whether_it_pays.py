"""The engine measures what a stream gains by reading a compressed copy, and states it."""

import math

import pytest

from embodied_kv.engine.compression_payoff import CHOICE, COPIES, LEAST, WHOLE, payoff
from embodied_kv.engine.time_budget import LatencyEstimator


def measured(whole, copies, choice, size=1, times=LEAST):
    latency = LatencyEstimator()
    for _ in range(times):
        latency.observe(WHOLE, whole, size)
        latency.observe(COPIES, copies, size)
        latency.observe(CHOICE, choice, 16)
    return latency


def test_it_pays_from_the_length_at_which_saved_tokens_outweigh_the_choice():
    found = payoff(measured(whole=0.006, copies=0.004, choice=0.016))
    assert found.tokens == pytest.approx(5.0)
    assert str(found).startswith('compression shortens answers from 5 tokens on')


def test_times_of_a_batch_count_for_each_stream():
    found = payoff(measured(whole=0.012, copies=0.008, choice=0.007, size=4))
    assert (found.whole, found.copies) == pytest.approx((0.003, 0.002))
    assert found.tokens == pytest.approx(4.0)


@pytest.mark.parametrize('copies', [0.006, 0.007])
def test_it_never_pays_in_time_where_copies_are_not_read_faster(copies):
    found = payoff(measured(whole=0.006, copies=copies, choice=0.01))
    assert found.tokens == math.inf
    assert 'saves memory but no time' in str(found)


def test_few_measurements_state_nothing():
    assert payoff(LatencyEstimator()) is None
    assert payoff(measured(0.006, 0.004, 0.016, times=LEAST - 1)) is None


def test_an_engine_that_compresses_measures_it(make_engine, observe):
    config = dict(language_keep_ratio=0.5, compression_after_tokens=2, streams=1)
    engine = make_engine(compressed_rows=2, **config)
    for frame in range(LEAST):
        (handle,) = engine.prefill([observe(frame)])
        stream = engine.open(handle, 'Subtask:', max_tokens=8, temperature=2.0, seed=frame)
        while not stream.reason:
            engine.decode()
    assert engine.compression_payoff is not None
    assert engine.compression_payoff.whole > 0 and engine.compression_payoff.copies > 0


def test_an_engine_that_does_not_compress_states_nothing(make_engine, observe):
    engine = make_engine()
    (handle,) = engine.prefill([observe(0)])
    engine.open(handle, 'Subtask:', max_tokens=4)
    while engine.kv.streams.live():
        engine.decode()
    assert engine.compression_payoff is None
