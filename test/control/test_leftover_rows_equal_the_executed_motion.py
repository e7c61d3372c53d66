"""The rows of the leftover equal the motion that the arm executes."""

import numpy as np
import pytest
from control_cases import chunk, limits, make_executor, seen
from hypothesis import given
from hypothesis import strategies as st

DT, CHUNK, JOINTS = 0.1, 6, 2


def ramp(start=0.0, step=0.1, **others):
    return chunk(np.repeat(start + step * np.arange(CHUNK)[:, None], JOINTS, 1), **others)


def running(*offers, lim=None, **others):
    """Return an executor that took over each (chunk, began, now)."""
    executor = make_executor(lim, **others)
    for offered, began, now in offers:
        taken = executor.take_over(offered, began, now, seen(now))
        assert taken.values is not None, taken.reason
    return executor


def test_coinciding_rows_equal_the_actions():
    rows = running((ramp(), 0.0, 0.0)).rows(0.2, CHUNK, 0.25)
    np.testing.assert_array_equal(rows[:4], ramp().values[2:].astype(float))
    assert np.isnan(rows[4:]).all() and rows.shape == (CHUNK, JOINTS)


@given(observed=st.floats(0.0, 0.5), now=st.floats(0.0, 0.49))
def test_rows_between_two_actions_are_interpolated_linearly(observed, now):
    rows = running((ramp(), 0.0, 0.0)).rows(observed, CHUNK, now)
    times = observed + np.arange(CHUNK) * DT
    known = times <= 0.5 + 1e-9
    np.testing.assert_allclose(rows[known, 0], times[known], atol=1e-6)
    assert np.isnan(rows[~known]).all()


def test_leftover_ends_at_the_execution_horizon():
    executor = running((ramp(execution_horizon=4), 0.0, 0.0))
    rows = executor.rows(0.1, CHUNK, 0.15)
    np.testing.assert_allclose(rows[:3, 0], [0.1, 0.2, 0.3], atol=1e-6)
    assert np.isnan(rows[3:]).all()
    assert executor.rows(0.31, CHUNK, 0.29) is None  # observed after the last action
    assert executor.rows(0.2, CHUNK, 0.31) is None  # all have passed


def test_leftover_is_clamped_to_the_limits():
    rows = running((ramp(), 0.0, 0.0), lim=limits(lower=-1, upper=0.25)).rows(0.1, CHUNK, 0.1)
    np.testing.assert_allclose(rows[:5, 0], [0.1, 0.2, 0.25, 0.25, 0.25], atol=1e-6)


def test_rows_before_a_take_over_are_those_of_the_previous_chunk():
    executor = running((ramp(), 0.0, 0.0), (ramp(1.0), 0.2, 0.4))
    rows = executor.rows(0.3, CHUNK, 0.45)
    # The first chunk ran until 0.4. The second one began at 0.2, so 1.2 is due at 0.4.
    np.testing.assert_allclose(rows[:5, 0], [0.3, 1.2, 1.3, 1.4, 1.5], atol=1e-6)
    assert np.isnan(rows[5]).all()


def test_plan_keeps_the_past_only_since_the_observation():
    executor = running(*((ramp(), i * DT, i * DT + 0.35) for i in range(100)))
    assert len(executor.plan.past) <= 2 * CHUNK


def test_rows_of_an_arm_at_rest_are_constant_until_the_take_over():
    executor = make_executor()
    executor.take_over(ramp(1.0), 0.0, 0.35, seen(0.35, 0.8, 0.8))
    rows = executor.rows(0.2, CHUNK, 0.36)
    np.testing.assert_allclose(rows[:2, 0], [0.8, 0.8], atol=1e-6)  # at 0.2 and 0.3
    np.testing.assert_allclose(rows[2:4, 0], [1.4, 1.5], atol=1e-6)


def test_velocity_lasts_until_the_next_action():
    kinds = ['velocity', 'position']
    executor = running((ramp(), 0.0, 0.0), lim=limits(kinds=kinds))
    rows = executor.rows(0.15, CHUNK, 0.2)
    np.testing.assert_allclose(rows[:3], [[0.1, 0.15], [0.2, 0.25], [0.3, 0.35]], atol=1e-6)


@pytest.mark.parametrize('source', ['hold', 'stop'])
def test_braking_arm_has_no_leftover(source):
    executor = running((ramp(), 0.0, 0.0))
    executor.brake(0.2, source)
    assert executor.rows(0.2, CHUNK, 0.21) is None


def test_taken_over_arm_has_no_leftover():
    executor = running((ramp(), 0.0, 0.0))
    executor.drop()
    assert executor.rows(0.2, CHUNK, 0.21) is None


def test_ended_chunk_has_no_leftover():
    executor = running((ramp(), 0.0, 0.0))
    assert executor.rows(0.3, CHUNK, 0.51) is None


def test_arm_without_a_motion_has_no_leftover():
    assert make_executor().rows(0.0, CHUNK, 0.0) is None


def test_late_set_points_delay_the_remaining_actions():
    executor = running((ramp(), 0.0, 0.0))
    executor.catch_up(0.2, 0.21, 0.26)
    rows = executor.rows(0.35, CHUNK, 0.3)
    np.testing.assert_allclose(rows[:3, 0], [0.3, 0.4, 0.5], atol=1e-6)
