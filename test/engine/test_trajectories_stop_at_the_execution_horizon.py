"""Of a chunk that says how many of its actions are safe, no later one is ever commanded."""

import numpy as np
import pytest

from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk

DT, CHUNK = 0.1, 6


def chunk(execute, start=0.0, step=1.0):
    """One joint; action i is start + i * step."""
    values = start + step * np.arange(CHUNK, dtype=np.float32)[:, None]
    return ActionChunk(values, DT, 0, 0.0, 7, 10, 0.0, 0.0, execution_horizon=execute)


def commands(executor):
    """What is commanded, and as what, over a second of missed periods."""
    moments = np.arange(0, 1, DT / 2)
    said = []
    for number, now in enumerate(moments):
        if number % 2:
            executor.missed(now)
        due = executor.due(now)
        said.append((float(due.values[0]), due.source, len(executor.remaining(now)[0])))
    return said


@pytest.mark.parametrize('execute', range(1, CHUNK + 1))
def test_the_fallback_ends_with_the_last_action_that_is_safe(execute):
    executor = TrajectoryExecutor(1, DT, stop_after=100)
    executor.take_over(chunk(execute), began=0.0, now=0.0)
    assert len(executor.remaining(0.0)[0]) == execute
    for number, (value, source, left) in enumerate(commands(executor)):
        assert value == min(number // 2, execute - 1)
        assert (source == 'hold') == (number >= 2 * execute)
        assert left <= max(0, execute - number // 2)


def test_a_chunk_that_says_nothing_is_executed_whole():
    said = []
    for execute in (None, CHUNK):
        executor = TrajectoryExecutor(1, DT, max_joint_step=0.7)
        executor.hold_at([0.0])
        executor.take_over(chunk(execute), began=-0.13, now=0.0)
        said.append(commands(executor))
    assert said[0] == said[1]


def test_a_chunk_whose_safe_actions_have_passed_is_refused_and_what_runs_goes_on():
    executor = TrajectoryExecutor(1, DT)
    executor.take_over(chunk(CHUNK), began=0.0, now=0.0)
    took = executor.take_over(chunk(2, start=100.0), began=0.1, now=0.35)
    assert (took.first, took.values, executor.counters.refused) == (3, None, 1)
    assert executor.due(0.4).values[0] == 4


def test_the_actions_beyond_are_known_within_limits_but_not_counted():
    executor = TrajectoryExecutor(1, DT, upper=4.0, max_joint_step=2.0)
    executor.hold_at([0.0])
    took = executor.take_over(chunk(2, step=3.0), began=0.0, now=0.0)  # 0, 3 | 6, 9, ...
    np.testing.assert_array_equal(took.values[:, 0], [0, 2, 4, 4, 4, 4])
    assert took.clamped == 0 and took.blended
