"""Chunks take over by time: no passed action is executed, and the arm does not jump."""

import numpy as np
import pytest
from control_cases import assert_feasible, chunk, limits, make_executor, seen
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.control.motion import Motion

DT, CHUNK, JOINTS = 0.1, 6, 2


def ramp(start=0.0, step=0.1, **others):
    """Return a chunk with actions start + i * step of every joint."""
    return chunk(np.repeat(start + step * np.arange(CHUNK)[:, None], JOINTS, 1), **others)


@given(late=st.floats(0, (CHUNK - 1) * DT))
def test_first_action_is_the_first_that_has_not_passed(late):
    executor = make_executor()
    took = executor.take_over(ramp(), 5.0, 5.0 + late, seen(5.0 + late))
    assert (took.first - 1) * DT < late <= took.first * DT + 1e-6
    values, times = executor.remaining(5.0 + late)
    np.testing.assert_allclose(values[:, 0], np.arange(took.first, CHUNK) / 10, atol=1e-6)
    np.testing.assert_allclose(times, np.arange(took.first, CHUNK) * DT - late, atol=1e-6)


def test_action_is_reached_at_its_moment_on_a_straight_path():
    executor = make_executor()
    executor.take_over(ramp(), 0.0, 0.05, seen(0.05, 0.05, 0.05))
    places = [executor.due(now).values[0] for now in (0.1, 0.15, 0.2, 0.45)]
    np.testing.assert_allclose(places, [0.1, 0.15, 0.2, 0.45], atol=1e-3)


def test_a_chunk_takes_over_from_the_motion_that_runs_without_a_step():
    executor = make_executor(limits(velocity=3, acceleration=20))
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    before = executor.due(0.32)
    executor.take_over(ramp(0.5), 0.25, 0.32, seen(0.32, 9.0, 9.0))  # within the tolerance
    after = executor.due(0.32)
    np.testing.assert_allclose(after.positions, before.positions)
    np.testing.assert_allclose(after.velocities, before.velocities)


def test_motion_starts_at_the_measured_position_after_the_previous_ended():
    executor = make_executor(limits(velocity=3, acceleration=20))
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    assert not executor.is_moving(2.0)
    executor.take_over(chunk(np.full((CHUNK, JOINTS), 2.0)), 3.0, 3.0, seen(3.0, 2.0, 2.0))
    np.testing.assert_allclose(executor.due(3.0).values, [2.0, 2.0])
    assert not executor.points(3.0)[2].any()  # commanded to stay where it was moved by hand


def test_measurement_from_before_the_end_of_a_motion_is_not_its_start():
    executor = make_executor(limits(velocity=3, acceleration=20), max_tracking_error=0.2)
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    rest = executor.rest()[0]
    assert not executor.is_moving(0.8) and rest[0] > 0.45
    executor.take_over(ramp(0.3), 0.7, 0.8, seen(0.4, 0.4, 0.4))  # measured during the motion
    np.testing.assert_allclose(executor.due(0.8).values, rest)
    assert not executor.due(0.8).velocities.any()


def test_motion_starts_at_a_strayed_position_after_a_second_measurement():
    executor = make_executor(limits(velocity=3, acceleration=20), max_tracking_error=0.2)
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    taken = executor.take_over(ramp(), 0.1, 0.2, seen(0.2, 1.0, 0.3))
    assert 'a second measurement must confirm it' in taken.reason
    assert not executor.take_over(ramp(), 0.1, 0.3, seen(0.3, 1.0, 0.3)).reason
    due = executor.due(0.3)
    assert due.values.tolist() == [1.0, 0.3] and not due.velocities.any()


@pytest.mark.parametrize(
    'measured, why',
    [
        (None, 'no joint state, or none of late'),
        (seen(0.4), 'no joint state for 0.60 s, 0.5 s are allowed'),
        (seen(1.0, 0.0, np.nan), 'joint joint_1 is not measured'),
        (seen(1.0, 0.0), 'a joint state has 1 of 2 joints'),
    ],
)
def test_without_a_measured_position_nothing_is_taken_over(measured, why):
    executor = make_executor()
    took = executor.take_over(ramp(), 1.0, 1.0, measured)
    assert (took.values, took.reason) == (None, why)
    assert executor.due(1.0).values is None and not executor.is_moving(1.0)


def test_unmeasured_axis_moves_by_its_velocity():
    free = limits(2, -np.inf, np.inf, velocity=1.0, acceleration=5.0, kinds='velocity')
    executor = make_executor(free)
    executor.take_over(chunk(np.full((CHUNK, 2), 0.5)), 0.0, 0.0, seen(0.0, np.nan, np.nan))
    np.testing.assert_allclose(executor.due(0.3).values, [0.5, 0.5])
    assert executor.due(5.0).values.tolist() == [0.0, 0.0]


def test_velocity_joint_keeps_its_position_limits():
    bounded = limits(2, -1, 1, velocity=1.0, acceleration=5.0, kinds='velocity')
    executor = make_executor(bounded)
    executor.take_over(chunk(np.full((CHUNK, 2), 1.0)), 0.0, 0.0, seen(0.0))
    executor.take_over(chunk(np.full((CHUNK, 2), 1.0)), 0.1, 0.3, seen(0.3, 0.9, 0.0))
    assert executor.rest()[0, 0] == pytest.approx(1.0, abs=1e-5)


def test_time_never_runs_back_in_the_executor():
    executor = make_executor()
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    place = executor.due(0.3).values
    assert (executor.due(0.1).values == place).all()
    assert executor.take_over(ramp(), 0.0, 0.1, seen(0.3)).first == 3


def test_a_chunk_older_than_the_one_that_runs_is_refused():
    executor = make_executor()
    executor.take_over(ramp(), 1.0, 1.0, seen(1.0))
    took = executor.take_over(ramp(50), 0.9, 1.0, seen(1.0))
    assert took.first == CHUNK and 'later observation' in took.reason
    assert (executor.counters.takeovers, executor.counters.refused) == (1, 1)


def test_a_chunk_that_is_entirely_too_late_is_refused():
    took = make_executor().take_over(ramp(), 0.4, 1.05, seen(1.05))
    assert (took.first, took.values) == (CHUNK, None)
    assert took.reason == 'all 6 actions of its execution horizon have passed'


def test_values_outside_the_limits_are_clamped_and_counted():
    executor = make_executor(limits(lower=[-1.0, -2.0], upper=[1.0, 0.5]))
    took = executor.take_over(ramp(0.0, 0.3), 0.0, 0.1, seen(0.1))  # 0.3, 0.6, 0.9, 1.2, 1.5
    assert took.clamped == executor.counters.clamped == 2 + 4
    np.testing.assert_array_equal(took.values[-1], [1.0, 0.5])
    np.testing.assert_allclose(executor.rest()[0], [1.0, 0.5], atol=1e-5)


@pytest.mark.parametrize('jump, blended', [(0.0, False), (1.0, True)])
def test_blended_chunk_is_reported(jump, blended):
    executor = make_executor(limits(velocity=1, acceleration=5))
    values = np.full((CHUNK, JOINTS), jump)
    took = executor.take_over(chunk(values), 0.0, 0.0, seen(0.0))
    assert took.blended == blended == bool(executor.counters.blended)


@pytest.mark.parametrize(
    'bad',
    [
        chunk(np.full((CHUNK, JOINTS), np.nan)),
        chunk([[0, 0], [np.inf, 0]]),
        chunk(np.zeros((CHUNK, JOINTS + 1))),
        chunk(np.zeros((CHUNK, JOINTS)), dt=0.2),
    ],
)
def test_invalid_chunk_is_refused_and_the_motion_continues(bad):
    executor = make_executor()
    executor.take_over(ramp(), 0.0, 0.0, seen(0.0))
    with pytest.raises(ValueError):
        executor.take_over(bad, 0.1, 0.1, seen(0.1))
    assert executor.due(0.2).values[0] == pytest.approx(0.2, abs=1e-3)
    assert executor.due(0.2).source == 'fresh'


@pytest.mark.parametrize(
    'bad',
    [
        dict(max_tracking_error=0),
        dict(max_tracking_error=[1, 2, 3]),
        dict(max_tracking_error=-1),
        dict(max_relative_target=0),
        dict(max_joint_state_age=0),
        dict(max_joint_state_age=np.inf),
    ],
)
def test_invalid_parameters_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        make_executor(**bad)


events = st.lists(
    st.tuples(
        st.sampled_from(['chunk', 'chunk', 'due', 'missed', 'hold', 'stop', 'moved']),
        st.floats(0, 0.35),
        st.floats(0, 0.7),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(events)
def test_every_motion_is_feasible_after_random_operations(events):
    lim = limits(lower=[-1, -2], upper=[1, 0.5], velocity=[2, 4], acceleration=[8, 20])
    executor = make_executor(lim, max_tracking_error=0.3, missed_chunk_limit=3)
    now, arm = 0.0, np.array([0.9, -0.3])
    for kind, pause, age, seed in events:
        now += pause
        due = executor.due(now)
        if due.values is not None:
            arm = due.values if executor.is_moving(now) or kind != 'moved' else arm
        random = np.random.default_rng(seed)
        if kind == 'moved' and not executor.is_moving(now):
            arm = random.uniform(lim.lower, lim.upper)  # by hand
            executor.drop()
        elif kind == 'chunk':
            values = random.normal(0, 1.5, (CHUNK, JOINTS))
            took = executor.take_over(chunk(values), now - age, now, seen(now, *arm))
            if took.values is not None:
                assert_feasible(to_come(executor, now), lim)
                np.testing.assert_allclose(executor.due(now).values, arm, atol=1e-9)
        elif kind == 'missed':
            executor.missed(now)
        elif kind in ('hold', 'stop'):
            before = executor.due(now)
            executor.brake(now, kind)
            if before.values is not None:
                np.testing.assert_allclose(executor.due(now).values, before.values)


def to_come(executor, now):
    """Return the motion from now on."""
    times, positions, velocities, _ = executor._reference.after(now, 0.0)
    return Motion(times, positions, velocities)
