"""Every motion keeps position, velocity and acceleration limits and ends at rest."""

import numpy as np
import pytest
from control_cases import any_limits, assert_feasible, inside, limits
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.control.motion import acceleration, brake, follow

SHARES = st.lists(st.floats(0, 1), min_size=2, max_size=2)
DTS = st.sampled_from([0.1, 0.05, 1 / 15, 1 / 30, 0.02])


def actions(limits, seed, rows):
    """Generate actions: noise, a random walk, or jumps between the limits."""
    random = np.random.default_rng(seed)
    kind = random.integers(3)
    values = random.normal(0, 3, (rows, len(limits)))
    if kind == 1:
        values = np.cumsum(values / 50, axis=0)
    elif kind == 2:
        values = np.sign(values) * 1e3
    return limits.clip(values)


@settings(deadline=None)
@given(any_limits(), SHARES, st.integers(0, 2**16), st.integers(1, 8), DTS, st.floats(-2, 1))
def test_a_motion_through_any_actions_is_feasible(limits, share, seed, rows, dt, due):
    motion = follow(
        inside(limits, share), np.zeros(2), actions(limits, seed, rows), due * dt, dt, limits
    )
    assert_feasible(motion, limits)


@settings(deadline=None)
@given(
    any_limits(),
    SHARES,
    DTS,
    st.lists(st.tuples(st.integers(0, 2**16), st.floats(0, 1.1)), min_size=1, max_size=4),
)
def test_motion_may_be_replaced_or_braked_at_any_moment(limits, share, dt, takeovers):
    position, velocity = inside(limits, share), np.zeros(2)
    for seed, moment in takeovers:
        motion = follow(position, velocity, actions(limits, seed, 5), -0.3 * dt, dt, limits)
        assert_feasible(motion, limits)
        position, velocity = motion.at(moment * motion.duration)
        stop = brake(position, velocity, limits)
        assert_feasible(stop, limits)


@settings(deadline=None)
@given(any_limits(), st.floats(0.01, 3), st.booleans(), st.integers(0, 2**16), DTS)
def test_start_outside_the_limits_stays_or_moves_inwards(limits, far, above, seed, dt):
    start = np.where(above, limits.upper + far, limits.lower - far)
    start = np.where(np.isfinite(start), start, 0.0)
    motion = follow(start, np.zeros(2), actions(limits, seed, 6), 0.0, dt, limits)
    np.testing.assert_array_equal(motion.positions[0], start)
    assert_feasible(motion, limits, outside=True)


def test_arm_outside_the_limits_can_be_commanded_to_stay():
    motion = brake(np.array([3.0]), np.zeros(1), limits(1, -1, 1))
    assert motion.positions.tolist() == [[3.0]] and motion.duration == 0


@pytest.mark.parametrize('goal', [0.5, -0.9, 1.0])
def test_a_jump_is_approached_without_overshoot_and_reached(goal):
    lim = limits(1, -1, 1, velocity=2.0, acceleration=5.0)
    motion = follow(np.zeros(1), np.zeros(1), np.full((20, 1), goal), 0.0, 0.1, lim)
    way = motion.sample(np.linspace(0, motion.duration, 999))[0][:, 0] * np.sign(goal)
    assert way.max() <= abs(goal) + 1e-9
    assert way[-1] == pytest.approx(abs(goal), abs=1e-6)
    # Time-optimal: half of the distance accelerating, half braking, and two steps for the grid.
    whole = 2 * np.sqrt(abs(goal) / 5.0)
    assert motion.at(whole + 0.04)[0][0] == pytest.approx(goal, abs=1e-3)


SMOOTH = {
    'at rest': (lambda t: 0.3 + 0 * t, lambda t: 0 * t, 1e-12),
    'uniform': (lambda t: 0.7 * t - 0.2, lambda t: 0.7 + 0 * t, 1e-12),
    'accelerating': (lambda t: 0.5 * t + 0.8 * t**2, lambda t: 0.5 + 1.6 * t, 1e-4),
    'a wave': (lambda t: 0.5 * np.sin(2 * t), lambda t: np.cos(2 * t), 1e-4),
}


@pytest.mark.parametrize('dt', [0.1, 0.02, 1 / 15])
@pytest.mark.parametrize('name', SMOOTH)
def test_a_feasible_chunk_is_followed_exactly(name, dt):
    place, speed, near = SMOOTH[name]
    moments, now = np.arange(10) * dt, 2.37 * dt
    motion = follow(
        np.array([place(now)]),
        np.array([speed(now)]),
        place(moments)[:, None],
        -now,
        dt,
        limits(1, -5, 5, velocity=3, acceleration=20),
    )
    met = motion.sample(moments[3:] - now)[0][:, 0]
    np.testing.assert_allclose(met, place(moments[3:]), atol=near)


def test_velocity_lasts_until_the_next_action_and_then_brakes():
    lim = limits(1, -np.inf, np.inf, velocity=2.0, acceleration=10.0, kinds='velocity')
    motion = follow(np.zeros(1), np.array([1.0]), np.array([[1.0], [2.0]]), 0.0, 0.1, lim)
    speeds = motion.sample(np.array([0.0, 0.05, 0.1, 0.15, 0.2]))[1][:, 0]
    np.testing.assert_allclose(speeds, [1.0, 1.0, 1.0, 1.5, 2.0], atol=1e-9)
    assert motion.duration == pytest.approx(0.2 + 0.2, abs=1e-5)


def test_a_velocity_ends_before_the_position_limit():
    lim = limits(1, -0.1, 0.1, velocity=1.0, acceleration=5.0, kinds='velocity')
    motion = follow(np.zeros(1), np.zeros(1), np.full((20, 1), 1.0), 0.0, 0.1, lim)
    assert_feasible(motion, lim)
    assert motion.positions[-1, 0] == pytest.approx(0.1, abs=1e-6)


def test_braking_follows_the_direction_and_is_as_short_as_possible():
    lim = limits(2, velocity=4.0, acceleration=[4.0, 10.0])
    stop = brake(np.zeros(2), np.array([2.0, -1.0]), lim)
    np.testing.assert_allclose(stop.positions[-1], [0.5, -0.05], atol=1e-5)
    assert stop.duration == pytest.approx(0.5, abs=1e-5)
    assert (np.diff(stop.positions[:, 0]) > 0).all() and (np.diff(stop.positions[:, 1]) <= 0).all()


def test_points_for_a_controller_keep_the_lead_and_end_at_rest():
    lim = limits(1, velocity=4.0, acceleration=4.0)
    motion = follow(np.zeros(1), np.zeros(1), np.ones((5, 1)), 0.0, 0.1, lim)
    times, positions, velocities = motion.after(0.11, 0.04)
    assert times[0] >= 0.04 and (np.diff(times) > 0).all()
    np.testing.assert_allclose(positions[:, 0], motion.sample(times + 0.11)[0][:, 0])
    assert velocities[-1] == 0
    late = motion.after(motion.duration + 5, 0.04)
    assert late[0].tolist() == [0.04] and late[1][0] == motion.positions[-1]


def test_a_slow_joint_that_brakes_hard_turns_within_its_velocity():
    lim = limits(1, -1, 1, velocity=0.2, acceleration=60.0)
    speed = np.array([0.2])
    start = lim.upper - speed**2 / (2 * acceleration(lim))
    motion = follow(start, speed, np.full((3, 1), 1.0), 0.0, 0.1, lim)
    assert_feasible(motion, lim)


def test_errors_are_corrected_with_the_spare_acceleration():
    lim = limits(1, -50, 50, velocity=20, acceleration=10.0)
    moments = np.arange(20) * 0.1
    place = 5.0 * moments - 3.5 * moments**2  # needs 7 of the 10 rad/s²
    motion = follow(np.array([-0.6]), np.array([5.0]), place[:, None], 0.0, 0.1, lim)
    ahead = motion.sample(moments)[0][:, 0] - place
    assert ahead[0] == pytest.approx(-0.6) and abs(ahead[-1]) < 1e-3
    assert ahead.max() < 1e-3  # it does not overshoot
