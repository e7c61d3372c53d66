"""The delay of the next chunk is estimated from measured latencies."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.rtc import DelayEstimator, passed

DT, MOST, ALLOWED = 0.1, 10, 0.5


def delays(*latencies):
    known = DelayEstimator(DT, MOST, ALLOWED)
    for latency in latencies:
        known.observe(latency)
    return known


@pytest.mark.parametrize(
    'seconds, actions',
    [(0.0, 0), (0.05, 1), (0.1, 1), (0.1 + 1e-12, 1), (0.1001, 2), (0.3, 3), (0.95, 10)],
)
def test_action_has_passed_after_its_moment(seconds, actions):
    assert passed(seconds, DT, MOST) == actions


@given(seconds=st.floats(allow_nan=False))
def test_delay_is_within_the_chunk_for_any_clock(seconds):
    assert 0 <= passed(seconds, DT, MOST) <= MOST


@pytest.mark.parametrize('seconds, dt', [(math.nan, DT), (0.1, 0.0), (0.1, math.nan)])
def test_invalid_times_are_refused(seconds, dt):
    with pytest.raises(ValueError, match='must be a number'):
        passed(seconds, dt, MOST)


def test_deadline_is_expected_before_the_first_latency():
    assert delays().expected(0.0) == 5
    assert math.isnan(delays().latency)


def test_largest_recent_latency_is_expected():
    known = delays(0.12, 0.31, 0.22)
    assert known.expected(0.0) == 4
    assert known.latency == 0.22


def test_old_latency_is_dropped():
    known = delays(0.9, *[0.15] * 9)
    assert known.expected(0.0) == 9
    known.observe(0.15)
    assert known.expected(0.0) == 2


def test_delay_is_at_least_the_age_of_the_observation():
    assert delays(0.15).expected(0.42) == 5


@pytest.mark.parametrize('jump', [-3600.0, -1e-3, math.inf, math.nan])
def test_latency_of_a_clock_jump_is_ignored(jump):
    known = delays(0.15, jump)
    assert known.expected(0.0) == 2 and known.latency == 0.15
    assert 0 <= known.expected(-3600.0) <= MOST


def test_delay_leaves_at_least_one_new_action():
    assert delays(0.999).expected(5.0) == MOST - 1


def test_engine_slower_than_a_chunk_gives_the_largest_delay():
    assert delays(3.7).expected(0.0) == MOST - 1
