"""The control loop executes a chunk up to its execution horizon; a capsule keeps it so."""

import queue
import time

import numpy as np
import pytest

from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, TrajectoryExecutor
from embodied_kv.nodes.control.session_parts import ActionPart
from embodied_kv.types import ActionChunk

PERIOD = DT = 0.2  # long enough for a machine that is busy elsewhere
JOINTS, CHUNK = 2, 8


class Bench:
    """A control loop, what it says, and why it refused."""

    def __init__(self):
        self.commands, self.failures = queue.Queue(), queue.Queue()
        self.loop = ControlLoop(
            TrajectoryExecutor(JOINTS, DT, stop_after=100),
            PERIOD,
            position=lambda: np.zeros(JOINTS),
            publish=self.commands.put,
            publish_setpoint=lambda values: None,
            failed=self.failures.put,
        )
        self.loop.start()

    def frame(self, horizon, age=0.0):
        """A frame of `age` s ago, and its chunk: i in action i, surer the earlier."""
        observed = time.monotonic() - age
        self.loop.expect(observed + PERIOD)
        values = np.tile(np.arange(CHUNK, dtype=np.float32), (JOINTS, 1)).T
        sure = np.linspace(1, 0, CHUNK, dtype=np.float32)
        times = observed + PERIOD, 7, 10, 1.0, 2.0
        self.loop.offer(
            ActionChunk(values, DT, 5, *times, execution_horizon=horizon, confidence=sure)
        )
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
    bench.loop.stop()


def test_no_command_goes_beyond_it_and_each_says_what_it_can(bench):
    values, sure = bench.frame(horizon=4)
    *_, fresh = bench.until(FRESH)
    rest = bench.until(HOLD)
    while bench.loop.executor.due(time.monotonic()).values[0] < 3:
        rest += bench.until(HOLD)
    for command in [fresh, *rest]:
        assert command.points.max() <= 3
    previous = [command for command in rest if command.source == PREVIOUS]
    for command in [fresh, *previous]:
        assert (command.execution_horizon, len(command.values)) == (4, CHUNK)
        np.testing.assert_array_equal(command.confidence, sure)
        np.testing.assert_array_equal(command.values, values)
        assert command.first < 4
        np.testing.assert_array_equal(command.points, values[command.first : 4])
    held = rest[-1]
    assert (held.execution_horizon, len(held.values), len(held.confidence)) == (1, 1, 0)
    np.testing.assert_array_equal(held.values, [[3, 3]])


def test_a_chunk_without_one_is_executed_whole(bench):
    bench.frame(horizon=None)
    *_, fresh = bench.until(FRESH)
    assert fresh.execution_horizon == CHUNK and fresh.points[-1, 0] == CHUNK - 1


def test_when_all_that_it_allows_has_passed_the_reason_is_said(bench):
    bench.frame(horizon=1, age=DT * 1.5)
    reason = str(bench.failures.get(timeout=10))
    assert reason == 'all 1 actions of its execution horizon have passed'


def test_a_capsule_keeps_it_and_the_restored_robot_holds_beyond(bench):
    part = ActionPart(bench.loop, lambda: 10**9, DT, JOINTS)
    bench.frame(horizon=4)
    bench.until(FRESH)
    frozen = part.freeze()
    assert frozen.tensors['values'].max() == 3
    bench.until(HOLD)
    part.check(frozen)
    part.resume(frozen)
    *_, resumed = bench.until(PREVIOUS)
    left = len(frozen.tensors['values'])
    assert (resumed.execution_horizon, len(resumed.values), len(resumed.confidence)) == (
        left,
        left,
        0,
    )
    *_, held = bench.until(HOLD)
    np.testing.assert_array_equal(held.points, [[3, 3]])
