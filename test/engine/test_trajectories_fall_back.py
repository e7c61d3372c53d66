"""Without a fresh chunk: the rest of the previous one, then hold, then stop; never zeros."""

import numpy as np
import pytest

from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk

DT, JOINTS = 0.1, 2


def chunk(values):
    values = np.asarray(values, np.float32)
    return ActionChunk(values, DT, 0, 0.0, sequence=0, steps=10, prefill_ms=0, denoise_ms=0)


@pytest.fixture
def executor():
    """With a chunk of three actions 1, 2, 3 from time 0."""
    executor = TrajectoryExecutor(JOINTS, DT, stop_after=5)
    executor.take_over(chunk([[1, 1], [2, 2], [3, 3]]), began=0.0, now=0.0)
    return executor


def test_nothing_is_commanded_before_anything_was_known():
    due = TrajectoryExecutor(JOINTS, DT).due(0.0)
    assert (due.values, due.source, due.age) == (None, 'hold', np.inf)


def test_a_given_position_is_held():
    executor = TrajectoryExecutor(JOINTS, DT, upper=[1, 1])
    executor.hold_at([0.5, 2.0])
    due = executor.due(0.0)
    assert due.values.tolist() == [0.5, 1.0]
    assert due.source == 'hold'
    with pytest.raises(ValueError):
        executor.hold_at([np.nan, 0])


def test_missed_periods_say_previous_then_hold_then_stop(executor):
    assert executor.due(0.0).source == 'fresh'
    said = [executor.missed(now) for now in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    assert said == ['previous', 'previous', 'hold', 'hold', 'stop', 'stop']
    counters = executor.counters
    assert (counters.missed, counters.held, counters.stopped) == (6, 2, 2)


def test_the_rest_of_the_previous_chunk_is_executed(executor):
    executor.missed(0.1)
    due = executor.due(0.2)
    assert (due.values[0], due.source, due.age) == (3, 'previous', 0.2)


def test_holding_is_the_last_commanded_position(executor):
    executor.missed(0.4)
    due = executor.due(7.0)
    assert due.values.tolist() == [3, 3]
    assert due.source == 'hold'
    assert len(executor.remaining(7.0)[0]) == 0


def test_a_chunk_that_ran_out_is_held_though_nobody_counted_the_period(executor):
    assert executor.due(0.29).source == 'fresh'
    assert executor.due(0.3).source == 'hold'


def test_stop_drops_the_rest_of_the_chunk():
    executor = TrajectoryExecutor(JOINTS, DT, stop_after=2)
    executor.take_over(chunk([[1, 1], [2, 2], [3, 3], [4, 4]]), began=0.0, now=0.0)
    assert executor.due(0.0).values[0] == 1
    assert [executor.missed(0.05), executor.missed(0.1)] == ['previous', 'stop']
    due = executor.due(0.3)
    assert due.values[0] == 1
    assert due.source == 'stop'
    assert len(executor.remaining(0.3)[0]) == 0


def test_a_fresh_chunk_ends_every_fall_back(executor):
    for now in np.arange(1, 9) * DT:
        executor.missed(now)
    assert executor.due(0.9).source == 'stop'
    executor.take_over(chunk([[7, 7], [8, 8]]), began=0.9, now=0.95)
    assert executor.due(1.0).source == 'fresh'
    assert executor.due(1.0).values[0] == 8
    assert executor.missed(1.05) == 'previous'  # the count begins anew
