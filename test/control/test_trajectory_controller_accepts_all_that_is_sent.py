"""A joint_trajectory_controller accepts every trajectory, and its output never jumps.

`jtc.py` is its model. The cases are fresh and late chunks, holds, stops and take-overs, with
delays and clocks that differ.
"""

import contextlib

import numpy as np
import pytest
from control_cases import limits
from hypothesis import given, settings
from hypothesis import strategies as st
from stand import Stand

from embodied_kv.control.safety_state_machine import RefusedError

VELOCITY, ACCELERATION = 2.0, 10.0
SLOW = limits(lower=-3, upper=3, velocity=VELOCITY, acceleration=ACCELERATION)
CONTROLLERS = {
    'blends with the trajectory before, the default since 2026': dict(),
    'sets out from the desired state': dict(replacement=False, from_desired=True),
    'sets out from the measured state': dict(replacement=False),
}
EVENTS = ('chunk', 'chunk', 'chunk', 'jump', 'nothing', 'hold', 'stop', 'taken', 'resume')
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.floats(0.02, 0.3), st.integers(0, 2**16)),
    min_size=1,
    max_size=12,
)


def arm_at_rest(stand):
    """Arm the arm as soon as it stands."""
    for _ in range(200):
        stand.run(0.02)
        with contextlib.suppress(RefusedError):
            stand.safety.arm(stand.now)
            return
    raise AssertionError('the arm never came to rest')


def play(stand, events):
    """Execute each event and advance the time after it."""
    left = None
    stand.run(0.05)
    for kind, pause, seed in events:
        random = np.random.default_rng(seed)
        if kind in ('chunk', 'jump'):
            phase = stand.now * random.uniform(0.2, 1.2) + np.arange(8)[:, None] / 10
            values = np.sin(phase + random.uniform(0, 0.3, 2))
            if kind == 'jump':
                values = random.uniform(-4, 4, (8, 2))
            stand.offer(values, age=random.uniform(0, 0.4), execution_horizon=5)
        elif kind == 'hold':
            stand.loop.hold()
        elif kind == 'stop':
            stand.safety.stop('a person')
            stand.run(pause)
            stand.safety.reset()
            arm_at_rest(stand)
        elif kind == 'taken':
            stand.safety.take_over()
            stand.run(pause)
            stand.safety.give_back(stand.now)
        elif kind == 'resume' and left is not None:
            stand.loop.resume(left, stamp=1)
        left = stand.loop.leftover() or left
        stand.run(pause)
    stand.safety.stop('the end')
    stand.run(1.0)


@settings(deadline=None, max_examples=50)
@given(events, st.sampled_from(sorted(CONTROLLERS)), st.floats(0, 0.008), st.floats(-5, 5))
def test_nothing_is_rejected_and_the_output_never_jumps(events, name, delay, skew):
    stand = Stand(
        SLOW, delay=delay, skew=skew, controller=CONTROLLERS[name], max_tracking_error=0.5
    )
    play(stand, events)
    assert stand.rejected == []
    speeds, rates = stand.rates()
    assert np.abs(speeds).max() <= 1.5 * VELOCITY
    # A message that is late by d begins v d behind the arm, which is corrected within LEAD.
    late = 6 * VELOCITY * (delay + 0.004) / 0.04**2
    assert np.abs(rates).max() <= 4 * ACCELERATION + late
    assert np.abs(stand.path[-1] - stand.path[-50]).max() < 1e-9  # and it ends at rest


@pytest.mark.parametrize('name', CONTROLLERS)
def test_controller_spline_equals_the_motion_without_delay(name):
    stand = Stand(SLOW, controller=CONTROLLERS[name])
    stand.run(0.02)
    stand.offer(np.sin(np.arange(8) / 10), age=0.0)
    began, planned = len(stand.path), []
    for _ in range(450):
        stand.run(0.002)
        planned.append(stand.executor.due(stand.now + 0.002).positions)
    made = np.array(stand.path[began:])
    np.testing.assert_allclose(made, planned, atol=0.003)
    np.testing.assert_allclose(made[40:], planned[40:], atol=1e-3)


@pytest.mark.parametrize('delay', [0.0, 0.05, 0.3])
def test_a_stop_that_is_received_late_still_stops(delay):
    stand = Stand(SLOW, delay=delay, max_tracking_error=2.0, missed_chunk_limit=100)
    stand.run(0.02)
    stand.offer(np.arange(30) / 10)
    stand.run(0.6 + delay)
    stand.safety.stop('a person')
    stand.run(delay + 1.0)
    assert stand.rejected == []
    assert np.abs(stand.path[-1] - stand.path[-200]).max() < 1e-9
    np.testing.assert_allclose(stand.path[-1], stand.executor.rest()[0], atol=1e-6)
