"""The weights of the leftover equal the formulas of the paper."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.rtc import SCHEDULES, weights

CHUNK = 10


def weight(i, d, s, schedule):
    """Return the weight of one action, computed with Python floats."""
    d = min(d, s)
    if i >= s or i < d:
        return float(i < s)
    if schedule in ('ones', 'zeros'):
        return float(schedule == 'ones')
    w = min(1.0, max(0.0, (d - 1 - i) / (s - d + 1) + 1))
    return w * (math.exp(w) - 1) / (math.e - 1) if schedule == 'exponential' else w


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_weights_equal_an_independent_reference(schedule):
    for chunk in (1, 2, CHUNK, 50):
        for d in range(0, chunk + 1, max(1, chunk // 10)):
            for s in range(0, chunk + 1, max(1, chunk // 10)):
                wanted = [weight(i, d, s, schedule) for i in range(chunk)]
                np.testing.assert_allclose(
                    weights(d, s, chunk, schedule), wanted, rtol=0, atol=1e-15
                )


def test_the_example_of_the_reference_code():
    linear = weights(2, 6, CHUNK, 'linear')
    np.testing.assert_allclose(linear, [1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0, 0], atol=1e-15)


def test_weights_between_delay_and_horizon_are_evenly_spaced():
    between = weights(3, 8, CHUNK, 'linear')[3:8]  # as in the other reference
    np.testing.assert_allclose(between, np.linspace(1, 0, 7)[1:-1], atol=1e-15)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_delay_beyond_the_horizon_counts_as_the_horizon(schedule):
    np.testing.assert_array_equal(weights(7, 4, CHUNK, schedule), weights(4, 4, CHUNK, schedule))
    assert weights(7, 4, CHUNK, schedule).tolist() == [1] * 4 + [0] * 6
    assert not weights(7, 0, CHUNK, schedule).any()


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_each_chunk_of_a_batch_has_its_own_delay(schedule):
    d, s = np.array([0, 3, 5]), np.array([4, 8, 10])
    each = [weights(int(a), int(b), CHUNK, schedule) for a, b in zip(d, s, strict=True)]
    np.testing.assert_array_equal(weights(d, s, CHUNK, schedule), each)


@pytest.mark.parametrize('schedule', SCHEDULES)
@given(d=st.integers(0, CHUNK), s=st.integers(0, CHUNK))
def test_weights_never_increase(schedule, d, s):
    w = weights(d, s, CHUNK, schedule)
    assert (np.diff(w) <= 0).all() and w.min() >= 0 and w.max() <= 1


@pytest.mark.parametrize(
    'd, s, why',
    [
        (11, 5, r'delay must be integers from 0 to the chunk size 10 .got 11'),
        (-1, 5, r'delay must be .* .got -1'),
        (2, 11, r'horizon must be .* .got 11'),
        (2, -1, r'horizon must be .* .got -1'),
        (2.5, 5, r'delay must be .* .got 2.5'),
        ([1, 12], 5, r'delay must be .* .got \[1, 12\]'),
    ],
)
def test_delay_and_horizon_outside_the_chunk_are_refused(d, s, why):
    with pytest.raises(ValueError, match=why):
        weights(d, s, CHUNK, 'linear')


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match='must be one of linear, exponential, ones, zeros'):
        weights(1, 5, CHUNK, 'exp')
