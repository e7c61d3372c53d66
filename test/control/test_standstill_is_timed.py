"""A standstill counts from the last motion and ends with an unknown position."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.tracking import NEAR, StandstillTimer

VELOCITY = np.array([2.0, 0.5])
NEAREST = NEAR * VELOCITY


def test_standstill_counts_from_the_last_motion():
    still = StandstillTimer(VELOCITY)
    assert still.seconds(np.zeros(2), 10.0) == 0.0
    assert still.seconds(0.9 * NEAREST, 12.0) == 2.0
    assert still.seconds(np.array([0.0, 1.1]) * NEAREST, 13.0) == 0.0
    assert still.seconds(np.array([0.0, 1.1]) * NEAREST, 14.5) == 1.5


def test_slow_motion_ends_the_standstill():
    still = StandstillTimer(VELOCITY)
    longest = max(still.seconds(np.array([0.01 * t, 0.0]), t) for t in np.arange(0, 60, 0.1))
    assert longest < 3.0


def test_unknown_position_ends_the_standstill():
    still = StandstillTimer(VELOCITY)
    still.seconds(np.zeros(2), 0.0)
    assert still.seconds(None, 5.0) == 0.0
    assert still.seconds(np.full(2, np.nan), 6.0) == 0.0
    assert still.seconds(np.array([0.0, np.nan]), 7.0) == 0.0, 'a joint came back'
    assert still.seconds(np.array([0.0, np.nan]), 9.0) == 2.0, 'the other joint may stay unknown'


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(-1, 1), st.floats(-1, 1)), max_size=30))
def test_positions_during_a_standstill_are_close(steps):
    still, now, seen = StandstillTimer(VELOCITY), 0.0, []
    for dt, a, b in steps:
        now += dt
        position = np.array([a, b])
        stood = still.seconds(position, now)
        seen.append((now, position))
        since = [p for at, p in seen if at >= now - stood]
        assert all((np.abs(p - since[0]) <= NEAREST).all() for p in since)
