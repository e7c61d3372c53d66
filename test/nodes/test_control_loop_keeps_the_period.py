"""One command in every control period, whatever becomes of the chunks."""

import queue
import time

import numpy as np
import pytest

from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, STOP, TrajectoryExecutor
from embodied_kv.types import ActionChunk

PERIOD = DT = 0.2  # long enough for a machine that is busy elsewhere
CHUNK, JOINTS = 4, 2


class Bench:
    """A control loop, and what it says."""

    def __init__(self, position=None, stop_after=6, **limits):
        self.commands, self.setpoints, self.failures = queue.Queue(), queue.Queue(), queue.Queue()
        self.loop = ControlLoop(
            TrajectoryExecutor(JOINTS, DT, stop_after=stop_after, **limits),
            PERIOD,
            position=lambda: position,
            publish=self.commands.put,
            publish_setpoint=self.setpoints.put,
            failed=self.failures.put,
        )
        self.loop.start()

    def frame(self, value=0.0, stamp=0, deadline=None):
        """Announce a frame of now, and offer its chunk: value + i in action i."""
        deadline = time.monotonic() + PERIOD if deadline is None else deadline
        self.loop.expect(deadline)
        values = np.tile(value + np.arange(CHUNK), (JOINTS, 1)).T.astype(np.float32)
        chunk = ActionChunk(values, DT, stamp, deadline, 7, 10, 1.0, 2.0)
        self.loop.offer(chunk)
        return chunk

    def next(self):
        return self.commands.get(timeout=10)


@pytest.fixture
def bench():
    benches = []

    def make(*args, **kwargs):
        benches.append(Bench(*args, **kwargs))
        return benches[-1]

    yield make
    for b in benches:
        if b.loop.is_alive():
            b.loop.stop()


def test_before_the_first_frame_nothing_is_said(bench):
    b = bench()
    time.sleep(2 * PERIOD)
    assert b.commands.empty() and b.setpoints.empty()


def test_a_fresh_chunk_goes_out_as_it_is_with_its_passed_actions_marked(bench):
    b = bench()
    chunk = b.frame(stamp=123)
    command = b.next()
    assert (command.source, command.stamp, command.first, command.deadline_met) == (
        FRESH,
        123,
        1,
        True,
    )
    np.testing.assert_array_equal(command.values, chunk.values)
    np.testing.assert_array_equal(command.points, chunk.values[1:])
    assert (np.diff(command.times) > 0).all()


def test_without_fresh_chunks_come_previous_hold_stop(bench):
    b = bench()
    b.frame()
    commands = [b.next() for _ in range(9)]
    sources = [command.source for command in commands]
    assert sources[0] == FRESH and sources[6:] == [STOP] * 3
    assert sources[1:6] == sorted(sources[1:6], reverse=True)  # previous, then hold
    assert set(sources) == {FRESH, PREVIOUS, HOLD, STOP}
    previous = [c for c in commands if c.source == PREVIOUS]
    assert all(c.stamp == 0 and (c.values == commands[0].values).all() for c in previous)
    assert [c.first for c in previous] == sorted(c.first for c in previous)
    for command in commands[6:]:
        assert command.stamp is None and command.values.shape == (1, JOINTS)
        np.testing.assert_array_equal(command.values, commands[6].values)
    assert not any(command.deadline_met for command in commands[1:])
    ages = [command.age for command in commands]
    assert ages == sorted(ages)


def test_a_chunk_that_comes_late_takes_over_and_says_so(bench):
    b = bench()
    b.frame(deadline=time.monotonic() - PERIOD / 2)
    command = b.next()
    while command.source != FRESH:
        command = b.next()
    assert not command.deadline_met and command.first == 2


def test_a_chunk_whose_actions_are_all_over_is_not_executed(bench):
    b = bench()
    b.frame(deadline=time.monotonic() - 10)
    commands = [b.next()]
    while not b.loop.executor.counters.refused:
        commands.append(b.next())
        assert len(commands) < 5, 'nobody looked at it'
    assert all(command.source == HOLD for command in commands)


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_chunk_that_is_not_finite_is_refused_and_the_loop_goes_on(bench, value):
    b = bench()
    b.frame()
    assert b.next().source == FRESH
    b.frame(value)
    assert 'is not finite' in str(b.failures.get(timeout=10))
    command = b.next()
    assert command.source == PREVIOUS and np.isfinite(command.values).all()


def test_while_nobody_knows_where_the_robot_is_no_position_is_said(bench):
    b = bench()
    b.loop.expect(time.monotonic() + PERIOD)
    command = b.next()
    assert (command.source, command.values.shape, len(command.points)) == (HOLD, (0, JOINTS), 0)
    assert command.age == np.inf


def test_the_first_command_starts_from_where_the_robot_is(bench):
    b = bench(position=np.array([3.0, -3.0]), max_joint_step=0.5)
    b.frame()
    command = b.next()
    np.testing.assert_allclose(command.points[0], [2.5, -2.5])
    assert b.loop.executor.counters.blended == 1


def test_what_is_outside_the_limits_never_leaves(bench):
    b = bench(lower=0.5, upper=1.5)
    b.frame()
    command = b.next()
    assert command.values.min() == 0.5 and command.values.max() == 1.5
    assert b.loop.executor.counters.clamped == 2 * JOINTS  # in actions 2 and 3


def test_every_action_has_its_set_point(bench):
    b = bench()
    b.frame()
    first = b.next().first
    values = [b.setpoints.get(timeout=10)[0] for _ in range(CHUNK - first)]
    assert values == list(range(first, CHUNK))


def test_the_last_word_is_stop_where_the_robot_is(bench):
    b = bench(position=np.array([3.0, -3.0]))
    b.frame()
    assert b.next().source == FRESH
    b.loop.stop()
    command = b.next()
    assert command.source == STOP
    np.testing.assert_array_equal(command.points, [[3.0, -3.0]])
    assert b.commands.empty()


def test_where_that_is_not_known_the_last_word_is_stop_alone(bench):
    b = bench()
    b.frame()
    assert b.next().source == FRESH
    b.loop.stop()
    command = b.next()
    assert command.source == STOP and not len(command.points)


def test_who_never_said_anything_need_not_stop(bench):
    b = bench()
    b.loop.stop()
    assert b.commands.empty()
