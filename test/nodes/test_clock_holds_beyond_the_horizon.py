"""The control clock executes a chunk up to its H, says so, and a capsule keeps it so."""

import queue
import time

import numpy as np
import pytest

from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, TrajectoryExecutor
from embodied_kv.nodes.control.session_parts import ActionPart
from embodied_kv.types import ActionChunk

PERIOD = DT = 0.2  # long enough for a machine that is busy elsewhere
JOINTS, HORIZON = 2, 8


class Bench:
    """A clock, what it says, and why it refused."""

    def __init__(self):
        self.commands, self.failures = queue.Queue(), queue.Queue()
        self.clock = ControlLoop(
            TrajectoryExecutor(JOINTS, DT, stop_after=100),
            PERIOD,
            where=lambda: np.zeros(JOINTS),
            publish=self.commands.put,
            tick=lambda values: None,
            failed=self.failures.put,
        )
        self.clock.start()

    def frame(self, execute, age=0.0):
        """A frame of `age` s ago, and its chunk: i in action i, surer the earlier."""
        observed = time.monotonic() - age
        self.clock.expect(observed + PERIOD)
        values = np.tile(np.arange(HORIZON, dtype=np.float32), (JOINTS, 1)).T
        sure = np.linspace(1, 0, HORIZON, dtype=np.float32)
        times = observed + PERIOD, 7, 10, 1.0, 2.0
        self.clock.offer(ActionChunk(values, DT, 5, *times, execute=execute, confidence=sure))
        return values, sure

    def until(self, source):
        """Every command to the first of this source."""
        said = [self.commands.get(timeout=10)]
        while said[-1].source != source:
            said.append(self.commands.get(timeout=10))
        return said


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.clock.stop()


def test_no_command_goes_beyond_it_and_each_says_what_it_can(bench):
    values, sure = bench.frame(execute=4)
    *_, fresh = bench.until(FRESH)
    rest = bench.until(HOLD)
    while bench.clock.timeline.due(time.monotonic()).values[0] < 3:
        rest += bench.until(HOLD)
    for command in [fresh, *rest]:
        assert command.points.max() <= 3
    previous = [command for command in rest if command.source == PREVIOUS]
    for command in [fresh, *previous]:
        assert (command.execute, len(command.values)) == (4, HORIZON)
        np.testing.assert_array_equal(command.confidence, sure)
        np.testing.assert_array_equal(command.values, values)
        assert command.first < 4
        np.testing.assert_array_equal(command.points, values[command.first : 4])
    held = rest[-1]
    assert (held.execute, len(held.values), len(held.confidence)) == (1, 1, 0)
    np.testing.assert_array_equal(held.values, [[3, 3]])


def test_a_chunk_without_one_is_executed_whole(bench):
    bench.frame(execute=None)
    *_, fresh = bench.until(FRESH)
    assert fresh.execute == HORIZON and fresh.points[-1, 0] == HORIZON - 1


def test_when_all_that_it_allows_has_passed_the_reason_is_said(bench):
    bench.frame(execute=1, age=DT * 1.5)
    reason = str(bench.failures.get(timeout=10))
    assert reason == 'all 1 actions that its horizon allows have passed'


def test_a_capsule_keeps_it_and_the_restored_robot_holds_beyond(bench):
    part = ActionPart(bench.clock, lambda: 10**9, DT, JOINTS)
    bench.frame(execute=4)
    bench.until(FRESH)
    frozen = part.freeze()
    assert frozen.tensors['values'].max() == 3
    bench.until(HOLD)
    part.check(frozen)
    part.resume(frozen)
    *_, resumed = bench.until(PREVIOUS)
    left = len(frozen.tensors['values'])
    assert (resumed.execute, len(resumed.values), len(resumed.confidence)) == (left, left, 0)
    *_, held = bench.until(HOLD)
    np.testing.assert_array_equal(held.points, [[3, 3]])
