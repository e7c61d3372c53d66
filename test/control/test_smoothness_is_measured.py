"""Jerk, path length and seams of motions equal known values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.latency.smoothness import smoothness

RATE = 100.0
TIMES = np.arange(200) / RATE


def moved(*joints):
    return np.stack(joints, axis=1)


@given(speed=st.floats(-3, 3), bend=st.floats(-3, 3))
def test_a_line_and_a_parabola_have_no_jerk(speed, bend):
    of = smoothness(moved(speed * TIMES, speed * TIMES + bend * TIMES**2), RATE)
    assert of.jerk_rms == pytest.approx(0, abs=1e-4) and of.jerk_max == pytest.approx(0, abs=1e-3)


def test_the_jerk_of_a_cubic_is_its_third_derivative():
    of = smoothness(moved(0.5 * TIMES**3, -2.0 * TIMES**3), RATE)
    assert of.jerk_max == pytest.approx(12.0, rel=1e-4)
    assert of.jerk_rms == pytest.approx(np.sqrt((3.0**2 + 12.0**2) / 2), rel=1e-4)


def test_the_jerk_of_a_sine_does_not_depend_on_the_rate():
    found = []
    for rate in (100.0, 400.0):
        times = np.arange(0, 2, 1 / rate)
        found.append(smoothness(moved(np.sin(3 * times)), rate).jerk_max)
    assert found[0] == pytest.approx(27.0, rel=1e-2) and found[1] == pytest.approx(27.0, rel=1e-2)


def test_a_step_of_the_targets_is_a_jerk_and_smaller_steps_are_less():
    jerks = [smoothness(moved(a * (TIMES > 1)), RATE).jerk_max for a in (0.1, 0.2)]
    assert jerks[0] == pytest.approx(2 * 0.1 * RATE**3) and jerks[1] == pytest.approx(2 * jerks[0])


def test_path_length_equals_the_distance():
    there_and_back = np.append(TIMES, TIMES[::-1])
    of = smoothness(moved(3 * there_and_back, 4 * there_and_back), RATE)
    assert of.path_length == pytest.approx(2 * 5 * TIMES[-1])
    assert smoothness(moved(0 * TIMES), RATE).path_length == 0


@pytest.mark.parametrize('count', [1, 2, 3])
def test_few_targets_have_no_jerk(count):
    of = smoothness(np.ones((count, 2)) * np.arange(count)[:, None], RATE)
    assert (of.jerk_rms, of.jerk_max) == (0.0, 0.0)


@pytest.mark.parametrize(
    'positions, rate',
    [(np.zeros(5), RATE), (np.full((5, 2), np.nan), RATE), (np.zeros((5, 1)), 0)],
)
def test_invalid_motion_is_refused(positions, rate):
    with pytest.raises(ValueError):
        smoothness(positions, rate)
