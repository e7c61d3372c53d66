"""No action beyond the execution horizon of a chunk is commanded."""

import numpy as np
import pytest
from control_cases import chunk as make_chunk
from control_cases import limits, make_executor, seen

DT, CHUNK = 0.1, 6
BRAKES = 0.01 + 1e-3  # braking distance (rad) at 1 rad/s and 50 rad/s²


def chunk(execute, start=0.0, step=0.1):
    """Return a chunk of one joint with actions start + i * step."""
    return make_chunk(start + step * np.arange(CHUNK)[:, None], execution_horizon=execute)


def executor(**options):
    return make_executor(limits(1, velocity=3, acceleration=50), missed_chunk_limit=100, **options)


@pytest.mark.parametrize('execute', range(1, CHUNK + 1))
def test_the_motion_ends_with_the_last_action_that_is_safe(execute):
    beyond = chunk(execute).values.copy()
    beyond[execute:] = 9.0
    arm = executor()
    arm.take_over(make_chunk(beyond, execution_horizon=execute), 0.0, 0.0, seen(0.0, 0.0))
    assert len(arm.remaining(0.0)[0]) == execute
    for number, now in enumerate(np.arange(0, 1, DT / 2)):
        if number % 2:
            arm.missed(now)
        due, source = arm.due(now), arm.source(now)
        assert due.values[0] <= (execute - 1) * 0.1 + BRAKES
        assert (source == 'hold') == (number >= 2 * execute)
        assert len(arm.remaining(now)[0]) <= max(0, execute - number // 2)


def test_chunk_without_a_horizon_is_executed_whole():
    ends = []
    for execute in (None, CHUNK):
        arm = executor()
        arm.take_over(chunk(execute), -0.13, 0.0, seen(0.0, 0.0))
        ends.append(arm.rest().item())
    assert ends[0] == ends[1] == pytest.approx(0.5, abs=BRAKES)


def test_chunk_with_a_passed_horizon_is_refused_and_the_motion_continues():
    arm = executor()
    arm.take_over(chunk(CHUNK), 0.0, 0.0, seen(0.0, 0.0))
    took = arm.take_over(chunk(2, start=100.0), 0.1, 0.35, seen(0.35, 0.35))
    assert (took.first, took.values, arm.counters.refused) == (3, None, 1)
    assert took.reason == 'all 2 actions of its execution horizon have passed'
    assert arm.due(0.4).values[0] == pytest.approx(0.4, abs=1e-2)


def test_actions_beyond_the_horizon_are_clamped_but_not_counted():
    arm = make_executor(limits(1, upper=0.4))
    took = arm.take_over(chunk(2, step=0.3), 0.0, 0.0, seen(0.0, 0.0))  # 0, 0.3 | 0.6, 0.9, ...
    np.testing.assert_allclose(took.values[:, 0], [0, 0.3, 0.4, 0.4, 0.4, 0.4], atol=1e-6)
    assert took.clamped == 0
