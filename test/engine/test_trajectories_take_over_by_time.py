"""Chunks take over by time: nothing that has passed, no step back, no jump, within the limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk

DT, CHUNK, JOINTS = 0.1, 6, 2
LOWER, UPPER, MAX_STEP = np.array([-1.0, -2.0]), np.array([1.0, 0.5]), np.array([0.25, 0.5])


def chunk(values, dt=DT, sequence=0):
    values = np.asarray(values, np.float32)
    return ActionChunk(
        values, dt, stamp=0, deadline=0.0, sequence=sequence, steps=10, prefill_ms=0, denoise_ms=0
    )


def ramp(start=0.0, step=1.0):
    """Action i of every joint is start + i * step."""
    return chunk(np.repeat(start + step * np.arange(CHUNK)[:, None], JOINTS, 1))


@given(late=st.floats(0, (CHUNK - 1) * DT))
def test_the_first_action_is_the_first_whose_time_has_not_passed(late):
    executor = TrajectoryExecutor(JOINTS, DT)
    took = executor.take_over(ramp(), began=5.0, now=5.0 + late)
    assert (took.first - 1) * DT < late <= took.first * DT + 1e-6
    values, times = executor.remaining(5.0 + late)
    np.testing.assert_array_equal(values[:, 0], np.arange(took.first, CHUNK))
    np.testing.assert_allclose(times, np.arange(took.first, CHUNK) * DT - late, atol=1e-6)


def test_an_action_is_commanded_from_its_time_to_the_next():
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=0.0, now=0.0)
    commands = [executor.due(now).values[0] for now in (0.0, 0.099, 0.1, 0.199, 0.2, 0.51)]
    assert commands == [0, 0, 1, 1, 2, 5]


def test_the_last_command_stands_until_the_new_chunk_s_first_moment():
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=0.0, now=0.0)
    assert executor.due(0.3).values[0] == 3
    assert executor.take_over(ramp(100), began=0.25, now=0.32).first == 1  # due at 0.35
    assert executor.due(0.34).values[0] == 3
    assert executor.due(0.35).values[0] == 101


def test_what_nobody_asked_for_passes_with_time():
    executor = TrajectoryExecutor(JOINTS, DT, max_joint_step=2.0)
    executor.take_over(ramp(), began=0.0, now=0.0)  # a trajectory controller executes it
    executor.take_over(ramp(10), began=0.3, now=0.4)
    values, _ = executor.remaining(0.4)
    assert values[:, 0].tolist() == [6, 8, 10, 12, 14]  # from 4, which was due, towards 11, 12, …


commands = st.lists(
    st.tuples(
        st.sampled_from(['chunk', 'due', 'due', 'missed']),
        st.floats(0, 0.35),
        st.floats(0, 0.7),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=40,
)


@given(commands, st.booleans())
def test_no_step_back_no_jump_and_limits_whatever_happens(events, held):
    executor = TrajectoryExecutor(
        JOINTS, DT, lower=LOWER, upper=UPPER, max_joint_step=MAX_STEP, stop_after=3
    )
    if held:
        executor.hold_at([5.0, -0.3])
    now, last, newest = 0.0, None, -np.inf
    for kind, pause, age, seed in events:
        now += pause
        if kind == 'chunk':
            values = np.random.default_rng(seed).normal(0, 1.5, (CHUNK, JOINTS))
            took = executor.take_over(chunk(values), began=now - age, now=now)
            if took.first < CHUNK:
                assert now - age >= newest
                newest = now - age
        elif kind == 'missed':
            executor.missed(now)
        due = executor.due(now)
        if due.values is None:
            assert not held and last is None
        else:
            assert np.isfinite(due.values).all()
            assert (due.values >= LOWER).all() and (due.values <= UPPER).all()
            if last is not None:
                assert (np.abs(due.values - last) <= MAX_STEP + 1e-9).all()
            last = due.values
        assert due.age == now - newest
        values, times = executor.remaining(now)
        assert (times >= 0).all() and (np.diff(times) > 0).all()
        assert (np.abs(np.diff(values, axis=0)) <= MAX_STEP + 1e-9).all()


@given(st.integers(0, 2**16))
def test_blended_steps_reach_the_chunk_and_then_follow_it(seed):
    executor = TrajectoryExecutor(JOINTS, DT, max_joint_step=0.5)
    executor.hold_at([0.0, 0.0])
    goal = np.random.default_rng(seed).uniform(-2, 2, JOINTS).astype(np.float32)
    took = executor.take_over(chunk(np.tile(goal, (CHUNK, 1))), began=0.0, now=0.0)
    assert took.blended == bool((np.abs(goal) > 0.5).any()) == bool(executor.counters.blended)
    np.testing.assert_allclose(executor.due(0.0).values, np.clip(goal, -0.5, 0.5))
    np.testing.assert_array_equal(executor.remaining(0.0)[0][-1], goal)


def test_time_that_seems_to_run_back_hands_out_nothing_older():
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=0.0, now=0.0)
    assert executor.due(0.3).values[0] == 3
    assert executor.due(0.1).values[0] == 3
    assert executor.take_over(ramp(), began=0.0, now=0.1).first == 3


def test_a_chunk_that_is_entirely_too_late_is_refused():
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=1.0, now=1.0)
    assert executor.take_over(ramp(50), began=0.4, now=1.05).first == CHUNK
    assert executor.due(1.1).values[0] == 1
    assert (executor.counters.takeovers, executor.counters.refused) == (1, 1)


def test_a_chunk_older_than_the_one_that_runs_is_refused():
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=1.0, now=1.0)
    assert executor.take_over(ramp(50), began=0.9, now=1.0).first == CHUNK
    assert executor.due(1.0).values[0] == 0


def test_values_outside_the_limits_are_clamped_and_counted():
    executor = TrajectoryExecutor(JOINTS, DT, lower=LOWER, upper=UPPER)
    took = executor.take_over(ramp(0.0, 0.3), began=0.0, now=0.1)  # 0.3, 0.6, 0.9, 1.2, 1.5
    assert took.clamped == executor.counters.clamped == 2 + 4
    np.testing.assert_array_equal(executor.remaining(0.0)[0][-1], UPPER)


@pytest.mark.parametrize(
    'bad',
    [
        chunk(np.full((CHUNK, JOINTS), np.nan)),
        chunk([[0, 0], [np.inf, 0]]),
        chunk(np.zeros((CHUNK, JOINTS + 1))),
        chunk(np.zeros((CHUNK, JOINTS)), dt=0.2),
    ],
)
def test_a_bad_chunk_is_refused_and_the_running_one_goes_on(bad):
    executor = TrajectoryExecutor(JOINTS, DT)
    executor.take_over(ramp(), began=0.0, now=0.0)
    with pytest.raises(ValueError):
        executor.take_over(bad, began=0.1, now=0.1)
    assert executor.due(0.2).values[0] == 2
    assert executor.due(0.2).source == 'fresh'


@pytest.mark.parametrize(
    'bad',
    [
        dict(lower=1, upper=0),
        dict(max_joint_step=0),
        dict(max_joint_step=[1, 2, 3]),
        dict(lower=np.nan),
    ],
)
def test_limits_that_contradict_each_other_are_refused(bad):
    with pytest.raises(ValueError):
        TrajectoryExecutor(JOINTS, DT, **bad)
