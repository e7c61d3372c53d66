"""The control loop resumes leftover actions with source `previous`, from the measured position."""

import numpy as np
import pytest
from stand import DT, Stand

from embodied_kv.control.command import FRESH, PREVIOUS, LeftoverActions

RAMP = np.arange(8) / 10 + 0.1


@pytest.fixture
def stand():
    stand = Stand(missed_chunk_limit=20)
    stand.run(0.02)
    return stand


def test_no_leftover_without_a_chunk(stand):
    assert stand.loop.leftover() is None


def test_leftover_shrinks_and_ends_at_the_execution_horizon(stand):
    stand.offer(RAMP, stamp=5, execution_horizon=5)
    stand.run(0.02)
    first = stand.loop.leftover()
    assert (first.stamp, first.sequence, first.steps) == (5, 1, 10)
    np.testing.assert_allclose(first.values[:, 0], RAMP[1:5], atol=1e-6)
    stand.run(2 * DT)
    second = stand.loop.leftover()
    assert len(second.values) == 2 and second.age == pytest.approx(first.age + 2 * DT)
    stand.run(3 * DT)
    assert stand.loop.leftover() is None


def test_no_leftover_after_a_stop(stand):
    stand.offer(RAMP)
    stand.run(0.1)
    stand.safety.stop('a person')
    stand.turn()
    assert stand.loop.leftover() is None


def test_no_leftover_after_the_instruction_is_cleared(stand):
    stand.offer(RAMP)
    stand.run(0.1)
    assert stand.loop.leftover() is not None
    stand.safety.set_instruction('')
    stand.turn()
    assert stand.loop.leftover() is None


def test_resumed_leftover_is_previous_and_starts_at_the_measured_position(stand):
    stand.by_hand(0.4, 0.4)
    stand.run(0.02)
    left = LeftoverActions(np.full((3, 2), 0.5), stamp=5, age=1.5, sequence=7, steps=10)
    stand.loop.resume(left, stamp=123)
    stand.turn()
    (_, command) = stand.commands[-1]
    assert (command.source, command.stamp, command.first, command.sequence) == (
        PREVIOUS,
        123,
        0,
        7,
    )
    assert command.age == pytest.approx(1.5) and not command.deadline_met
    np.testing.assert_array_equal(stand.executor.due(stand.now).values, [0.4, 0.4])
    again = stand.loop.leftover()  # a capsule of it keeps the stamp of the observation
    assert again.stamp == 5 and again.age >= 1.5 and len(again.values) == 3
    stand.run(1.0)
    np.testing.assert_allclose(stand.arm, 0.5, atol=1e-3)
    assert FRESH not in stand.sources()
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 2.0


def test_chunk_in_progress_takes_over_from_a_resumed_leftover(stand):
    stand.loop.resume(LeftoverActions(np.full((8, 2), 0.4), 5, 1.5, 7, 10), stamp=123)
    stand.run(0.05)
    stand.offer(np.full(8, 0.1), age=0.1)  # observed before the resume
    stand.run(1.0)
    assert stand.sources()[:2] == [PREVIOUS, FRESH]
    np.testing.assert_allclose(stand.arm, 0.1, atol=1e-3)
