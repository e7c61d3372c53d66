"""A decode step of many streams is divided if it takes longer than a frame may wait for it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.engine.time_budget import RETRY, TRIES, LatencyEstimator, TimeBudget

SIZES = 1, 2, 4, 8, 16


def budget_with(seconds, longest=0.02, enabled=True):
    latency = LatencyEstimator()
    for size, took in seconds.items():
        for _ in range(TRIES):
            latency.observe('decode', took, size)
    return TimeBudget(
        latency,
        period=0.1,
        margin=0.004,
        euler_steps=4,
        min_euler_steps=2,
        longest=longest,
        enabled=enabled,
    )


@given(st.lists(st.floats(0.001, 0.1), min_size=5, max_size=5).map(sorted))
def test_the_largest_size_that_is_fast_enough_is_chosen(seconds):
    chosen = budget_with(dict(zip(SIZES, seconds, strict=True))).largest('decode', SIZES)
    fast = [size for size, took in zip(SIZES, seconds, strict=True) if took <= 0.02]
    assert chosen == (max(fast) if fast else SIZES[-1])


def test_a_size_that_was_not_measured_is_tried():
    assert budget_with({16: 0.05}).largest('decode', SIZES) == 8


def test_one_slow_measurement_divides_nothing():
    budget = budget_with({})
    budget.latency.observe('decode', 0.5, 16)
    assert budget.largest('decode', SIZES) == 16


def test_all_sizes_are_measured_again_from_time_to_time():
    budget = budget_with({16: 0.05, 8: 0.01})
    chosen = []
    for _ in range(RETRY):
        chosen.append(budget.largest('decode', SIZES))
        budget.divided('decode', SIZES)
    assert chosen == [8] * RETRY and budget.largest('decode', SIZES) == 16


def test_a_size_is_chosen_alike_until_it_was_used():
    budget = budget_with({16: 0.05, 8: 0.01})
    assert {budget.largest('decode', SIZES) for _ in range(3 * RETRY)} == {8}


def test_streams_are_decoded_together_again_once_the_machine_is_fast(make_engine, observe):
    engine = make_engine(streams=4, time_budget=True)
    (handle,) = engine.prefill([observe(0)])
    engine.policy.tokenizer.eos = engine._decoder._eos = -1
    for text in ('a', 'b', 'c', 'd'):
        engine.open(handle, text, max_tokens=90)
        engine.decode()
    for size in (3, 4):
        for _ in range(TRIES):
            engine.latency.observe('decode', 1.0, size)
    engine.budget._pieces = RETRY - 3
    sizes = []
    for _ in range(6):
        sizes.append(len(engine.next_batch()[0]))
        engine.decode()
    assert sizes == [2, 2, 2, 4, 4, 4]


def test_without_a_time_budget_nothing_is_divided():
    budget = budget_with(dict.fromkeys(SIZES, 1.0), enabled=False)
    assert budget.longest == math.inf and budget.largest('decode', SIZES) == 16


def test_several_steps_at_once_take_no_longer_either():
    budget = budget_with({4: 0.006})
    assert budget.times(0.0, 'decode', 4, 16) == 3


@pytest.mark.parametrize('most', [1, 2, 3])
def test_all_streams_get_the_same_number_of_tokens_in_turns(make_engine, observe, most):
    engine = make_engine(streams=4, time_budget=True)
    (handle,) = engine.prefill([observe(0)])
    streams = [engine.open(handle, text, max_tokens=12) for text in ('a', 'b', 'c', 'd')]
    for _ in streams:
        engine.decode()  # the question of one stream
    for size in range(most + 1, 5):
        for _ in range(TRIES):
            engine.latency.observe('decode', 1.0, size)
    for _ in range(12):
        batch, is_alone = engine.next_batch()
        assert not is_alone and len(batch) <= most
        engine.decode()
        lengths = [len(stream.tokens) for stream in streams if not stream.reason]
        assert max(lengths, default=0) - min(lengths, default=0) <= 1


def test_turns_change_no_text(make_engine, observe):
    texts = []
    for slow in ((), (3, 4)):
        engine = make_engine(streams=4, time_budget=True)
        (handle,) = engine.prefill([observe(0)])
        streams = [engine.open(handle, text, max_tokens=8) for text in ('a', 'b', 'c', 'd')]
        for size in slow:
            for _ in range(TRIES):
                engine.latency.observe('decode', 1.0, size)
        while engine.kv.streams.live():
            engine.decode()
        texts.append([stream.tokens for stream in streams])
    assert texts[0] == texts[1]
