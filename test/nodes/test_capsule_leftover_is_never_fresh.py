"""The rest of a chunk, resumed by the control loop: previous from its first action on."""

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
def loop():
    commands = queue.Queue()
    loop = ControlLoop(
        TrajectoryExecutor(JOINTS, DT, stop_after=20, max_joint_step=0.5),
        PERIOD,
        position=lambda: np.zeros(JOINTS),
        publish=commands.put,
        publish_setpoint=lambda values: None,
        failed=commands.put,
    )
    loop.next = lambda: commands.get(timeout=10)
    loop.start()
    yield loop
    loop.stop()


def frame(loop, value=0.0, size=8, observed=None):
    """A chunk of a frame of now: `value` in every action."""
    observed = time.monotonic() if observed is None else observed
    loop.expect(observed + PERIOD)
    values = np.full((size, JOINTS), value, np.float32)
    loop.offer(ActionChunk(values, DT, 5, observed + PERIOD, 7, 10, 1.0, 2.0))


def until(loop, source):
    command = loop.next()
    while command.source != source:
        command = loop.next()
    return command


def test_without_a_chunk_nothing_is_left(loop):
    assert loop.leftover() is None


def test_what_is_left_shrinks_with_time(loop):
    frame(loop, 0.3)
    until(loop, FRESH)
    first = loop.leftover()
    assert (first.stamp, first.sequence, first.steps) == (5, 7, 10)
    assert 0 < len(first.values) < 8 and first.age >= 0
    time.sleep(2 * DT)
    second = loop.leftover()
    assert len(second.values) < len(first.values) and second.age >= first.age + 2 * DT
    until(loop, HOLD)
    assert loop.leftover() is None


def test_after_a_stop_nothing_is_left(loop):
    loop.executor.stop_after = 1
    frame(loop)
    until(loop, STOP)
    assert loop.leftover() is None


def test_a_resumed_one_is_previous_counts_from_now_and_keeps_its_age(loop):
    values = np.full((3, JOINTS), 0.9)
    loop.resume(Leftover(values, stamp=5, age=1.5, sequence=7, steps=10), stamp=123)
    command = loop.next()
    assert (command.source, command.stamp, command.first, command.sequence) == (
        PREVIOUS,
        123,
        0,
        7,
    )
    assert command.age == 1.5 and not command.deadline_met
    np.testing.assert_allclose(command.points[:, 0], [0.5, 0.9, 0.9])  # no jump from where it is
    np.testing.assert_allclose(command.times, [0.0, DT, 2 * DT], atol=1e-6)
    again = loop.leftover()  # a capsule of it knows whose observation it answers
    assert again is not None and again.stamp == 5 and again.age >= 1.5


def test_a_frame_that_was_under_way_takes_over_from_a_resumed_one(loop):
    before = time.monotonic()
    loop.resume(Leftover(np.full((8, JOINTS), 0.4), 5, 1.5, 7, 10), stamp=123)
    assert loop.next().source == PREVIOUS
    frame(loop, 0.1, observed=before)
    command = until(loop, FRESH)
    assert command.stamp == 5 and loop.executor.due(time.monotonic()).values[0] <= 0.4


def test_a_hold_stays_at_the_last_command_until_a_fresh_chunk(loop):
    frame(loop, 0.4)
    until(loop, FRESH)
    stays = loop.executor.due(time.monotonic()).values
    loop.hold()
    command = until(loop, HOLD)
    np.testing.assert_array_equal(command.points, stays[None])
    assert loop.leftover() is None
    frame(loop, 0.2)
    assert until(loop, FRESH).points[-1, 0] == pytest.approx(0.2)
