"""The rest of a chunk, resumed by the control clock: previous from its first action on."""

import queue
import time

import numpy as np
import pytest

from embodied_kv.control.command import Leftover
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, STOP, TrajectoryExecutor
from embodied_kv.types import ActionChunk

PERIOD = DT = 0.2  # long enough for a machine that is busy elsewhere
JOINTS = 2


@pytest.fixture
def clock():
    commands = queue.Queue()
    clock = ControlLoop(
        TrajectoryExecutor(JOINTS, DT, stop_after=20, max_joint_step=0.5),
        PERIOD,
        where=lambda: np.zeros(JOINTS),
        publish=commands.put,
        tick=lambda values: None,
        failed=commands.put,
    )
    clock.next = lambda: commands.get(timeout=10)
    clock.start()
    yield clock
    clock.stop()


def frame(clock, value=0.0, horizon=8, observed=None):
    """A chunk of a frame of now: `value` in every action."""
    observed = time.monotonic() if observed is None else observed
    clock.expect(observed + PERIOD)
    values = np.full((horizon, JOINTS), value, np.float32)
    clock.offer(ActionChunk(values, DT, 5, observed + PERIOD, 7, 10, 1.0, 2.0))


def until(clock, source):
    command = clock.next()
    while command.source != source:
        command = clock.next()
    return command


def test_without_a_chunk_nothing_is_left(clock):
    assert clock.leftover() is None


def test_what_is_left_shrinks_with_time(clock):
    frame(clock, 0.3)
    until(clock, FRESH)
    first = clock.leftover()
    assert (first.stamp, first.sequence, first.steps) == (5, 7, 10)
    assert 0 < len(first.values) < 8 and first.age >= 0
    time.sleep(2 * DT)
    second = clock.leftover()
    assert len(second.values) < len(first.values) and second.age >= first.age + 2 * DT
    until(clock, HOLD)
    assert clock.leftover() is None


def test_after_a_stop_nothing_is_left(clock):
    clock.timeline.stop_after = 1
    frame(clock)
    until(clock, STOP)
    assert clock.leftover() is None


def test_a_resumed_one_is_previous_counts_from_now_and_keeps_its_age(clock):
    values = np.full((3, JOINTS), 0.9)
    clock.resume(Leftover(values, stamp=5, age=1.5, sequence=7, steps=10), stamp=123)
    command = clock.next()
    assert (command.source, command.stamp, command.first, command.sequence) == (
        PREVIOUS,
        123,
        0,
        7,
    )
    assert command.age == 1.5 and not command.deadline_met
    np.testing.assert_allclose(command.points[:, 0], [0.5, 0.9, 0.9])  # no jump from where it is
    np.testing.assert_allclose(command.times, [0.0, DT, 2 * DT], atol=1e-6)
    again = clock.leftover()  # a capsule of it knows whose observation it answers
    assert again is not None and again.stamp == 5 and again.age >= 1.5


def test_a_frame_that_was_under_way_takes_over_from_a_resumed_one(clock):
    before = time.monotonic()
    clock.resume(Leftover(np.full((8, JOINTS), 0.4), 5, 1.5, 7, 10), stamp=123)
    assert clock.next().source == PREVIOUS
    frame(clock, 0.1, observed=before)
    command = until(clock, FRESH)
    assert command.stamp == 5 and clock.timeline.due(time.monotonic()).values[0] <= 0.4


def test_a_hold_stays_at_the_last_command_until_a_fresh_chunk(clock):
    frame(clock, 0.4)
    until(clock, FRESH)
    stays = clock.timeline.due(time.monotonic()).values
    clock.hold()
    command = until(clock, HOLD)
    np.testing.assert_array_equal(command.points, stays[None])
    assert clock.leftover() is None
    frame(clock, 0.2)
    assert until(clock, FRESH).points[-1, 0] == pytest.approx(0.2)
