"""The arm is compared with its reference at its measured lag, which faults do not change."""

import numpy as np
import pytest
from control_cases import limits
from hypothesis import given, settings
from hypothesis import strategies as st
from stand import DT, PERIOD, Stand

VELOCITY = 2.0
LIMITS = limits(lower=-50, upper=50, velocity=VELOCITY, acceleration=10.0)
TOLERANCE = 0.2  # derived: 0.1 s at the velocity limit


def stand_of(lag):
    # The controller continues its own reference, so that only the arm is late.
    controller = dict(replacement=False, from_desired=True)
    stand = Stand(LIMITS, max_tracking_error=np.nan, lag=lag, controller=controller)
    stand.run(0.3)
    return stand


def sweep(stand, seconds, speed):
    """Run a policy that moves all joints at a speed in continuous chunks."""
    began, first = stand.now, stand.arm[0]
    for _ in range(round(seconds / PERIOD)):
        ahead = stand.now - began - 0.05 + np.arange(15) * DT
        stand.offer(first + speed * np.maximum(ahead, 0.0))
        stand.run(PERIOD)


@pytest.mark.parametrize('lag', [0.0, 0.06, 0.12, 0.16])
def test_the_lag_of_an_arm_that_follows_is_measured(lag):
    stand = stand_of(lag)
    sweep(stand, 4.0, 0.5)
    assert stand.safety.state == 'armed'
    assert stand.executor.lag == pytest.approx(lag, abs=0.02)


def test_arm_with_a_known_lag_reaches_the_commanded_speed():
    stand = stand_of(0.12)
    sweep(stand, 3.0, 0.5)
    stand.run(1.0)
    began = stand.arm[0]
    sweep(stand, 3.0, 0.6 * VELOCITY)
    assert stand.safety.state == 'armed'
    assert stand.arm[0] - began > 0.9 * 0.6 * VELOCITY * (3.0 - 0.12)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.0, 0.16), st.floats(0.2, 0.9), st.floats(0.3, 2.0))
def test_blocked_arm_is_detected_and_does_not_change_the_lag(lag, share, after):
    stand = stand_of(lag)
    sweep(stand, after, share * VELOCITY)
    known = stand.executor.lag
    stand.follows = False
    stand.speed = np.zeros(2)
    sweep(stand, 3.0, share * VELOCITY)
    assert stand.safety.state == 'disarmed'
    assert stand.executor.lag <= max(known, lag) + 0.02  # not more than while it followed
    farthest = TOLERANCE + VELOCITY * (lag + PERIOD)
    assert np.abs(np.array(stand.path) - stand.arm).max(axis=1)[-1] < farthest


def test_slowed_arm_does_not_change_the_lag():
    stand = stand_of(0.0)
    stand.controller.scale = 0.5
    sweep(stand, 4.0, 0.5 * VELOCITY)
    assert stand.executor.lag < 0.02
