"""Without a fresh chunk, the executor continues the previous one, then holds, then stops."""

import numpy as np
import pytest
from control_cases import chunk, limits, make_executor, seen

from embodied_kv.control.command import LeftoverActions

DT = 0.1


@pytest.fixture
def executor():
    """Return an executor with a chunk of three actions 0.1, 0.2, 0.3 from time 0."""
    executor = make_executor(limits(velocity=3, acceleration=50), missed_chunk_limit=5)
    values = [[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]]
    executor.take_over(chunk(values), 0.0, 0.0, seen(0.0, 0.1, 0.1))
    return executor


def left(*values):
    """Return leftover actions of an earlier chunk."""
    return LeftoverActions(np.array(values).reshape(-1, 2), stamp=0, age=0.0, sequence=7, steps=10)


def test_nothing_is_commanded_before_the_first_chunk():
    due = make_executor().due(0.0)
    assert (due.values, due.source, due.age) == (None, 'hold', np.inf)


def test_missed_periods_give_previous_then_hold_then_stop(executor):
    assert executor.due(0.0).source == 'fresh'
    said = [executor.missed(now) for now in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    assert said == ['previous', 'previous', 'hold', 'hold', 'stop', 'stop']
    counters = executor.counters
    assert (counters.missed, counters.held, counters.stopped) == (6, 2, 2)


def test_the_rest_of_the_previous_chunk_is_executed(executor):
    executor.missed(0.1)
    due = executor.due(0.2)
    assert due.values[0] == pytest.approx(0.3, abs=1e-3)
    assert (due.source, due.age) == ('previous', 0.2)


def test_hold_ends_a_braking_distance_after_the_last_action(executor):
    executor.missed(0.4)
    due = executor.due(7.0)
    np.testing.assert_allclose(due.values, 0.3 + 1.0**2 / (2 * 50), atol=1e-3)
    assert due.source == 'hold' and not due.velocities.any()
    assert len(executor.remaining(7.0)[0]) == 0 and not executor.is_moving(7.0)


def test_ended_chunk_holds_before_the_period_ends(executor):
    assert executor.due(0.29).source == 'fresh'
    assert executor.due(0.3).source == 'hold'


def test_stop_drops_the_rest_of_the_chunk_and_brakes():
    executor = make_executor(limits(velocity=3, acceleration=50), missed_chunk_limit=2)
    values = np.repeat(np.arange(10)[:, None] / 10, 2, 1)
    executor.take_over(chunk(values), 0.0, 0.0, seen(0.0))
    assert [executor.missed(0.3), executor.missed(0.35)] == ['previous', 'stop']
    assert executor.due(0.35).velocities[0] == pytest.approx(1.0, abs=1e-2)
    rest = executor.due(0.6)
    assert rest.source == 'stop' and not rest.velocities.any()
    assert rest.values[0] == pytest.approx(0.35 + 1.0**2 / (2 * 50), abs=1e-3)
    assert len(executor.remaining(0.35)[0]) == 0


def test_fresh_chunk_ends_every_fallback(executor):
    for now in np.arange(1, 9) * DT:
        executor.missed(now)
    assert executor.due(0.9).source == 'stop'
    executor.take_over(chunk([[0.7, 0.7], [0.8, 0.8]]), 0.9, 0.95, seen(0.95, 0.7, 0.7))
    assert executor.due(1.0).source == 'fresh'
    assert executor.missed(1.05) == 'previous'  # the count restarts


def test_resumed_leftover_starts_at_the_measured_position(executor):
    reason = executor.resume(left([0.5, 0.5], [0.6, 0.6]), -1.5, 5.0, seen(5.0, 0.4, 0.4))
    assert reason == '' and executor.due(5.0).values.tolist() == [0.4, 0.4]
    assert (executor.source(5.0), executor.due(5.0).age) == ('previous', 6.5)
    values, times = executor.remaining(5.0)
    np.testing.assert_allclose(times, [DT, 2 * DT])
    assert executor.due(5.2).values[0] == pytest.approx(0.6, abs=1e-2)


def test_leftover_is_not_resumed_without_a_measured_position(executor):
    assert executor.resume(left([0.5, 0.5]), 0.0, 5.0, None) == 'no joint state, or none of late'
    assert not executor.is_moving(5.0)
    with pytest.raises(ValueError):
        executor.resume(left(), 0.0, 5.0, seen(5.0))


def test_blocked_arm_is_reported_during_a_motion_only():
    executor = make_executor(limits(velocity=3, acceleration=50), max_tracking_error=[0.1, np.inf])
    values = np.repeat(np.arange(10)[:, None] / 10, 2, 1)
    executor.take_over(chunk(values), 0.0, 0.0, seen(0.0))
    assert executor.monitor(0.55, seen(0.5, 0.49, 0.0)) == ''  # compared at the measurement
    assert 'joint joint_0 is at 0.200, 0.3' in executor.monitor(0.55, seen(0.5, 0.2, 0.0))
    assert executor.monitor(5.0, seen(5.0, 0.2, 0.0)) == ''
