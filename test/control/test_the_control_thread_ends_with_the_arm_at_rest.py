"""In real time, the thread sleeps until something is due, stops at once and ends at rest."""

import queue
import threading
import time

import numpy as np
import pytest
from control_cases import chunk, limits, make_executor

from embodied_kv.control.command import FRESH, HOLD, STOP, Measured
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.safety_state_machine import SafetyStateMachine

PERIOD = DT = 0.1


class Bench:
    """A control loop with its commands; the arm follows its set-points at once."""

    def __init__(self, **loop):
        self.commands, self.setpoints, self.failures = queue.Queue(), [], queue.Queue()
        self.place = np.zeros(2)
        executor = make_executor(limits(velocity=2.0, acceleration=10.0), missed_chunk_limit=100)
        self.safety = SafetyStateMachine(armed=True)
        self.loop = ControlLoop(
            executor,
            self.safety,
            PERIOD,
            measured=lambda: Measured(self.place, time.monotonic(), np.zeros(2)),
            publish=self.commands.put,
            publish_setpoint=self.take,
            failed=self.failures.put,
            **loop,
        )
        self.loop.start()

    def take(self, setpoint):
        self.setpoints.append(setpoint)
        self.place = setpoint.values

    def frame(self):
        now = time.monotonic()
        self.loop.expect(now + PERIOD)
        values = np.repeat(np.arange(40)[:, None] / 10, 2, 1)
        self.loop.offer(chunk(values, DT, deadline=now + PERIOD))

    def until(self, source):
        command = self.commands.get(timeout=10)
        while command.source != source:
            command = self.commands.get(timeout=10)
        return command


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.loop.stop()


def test_stop_brakes_at_once_and_returns_when_the_arm_stands(bench):
    bench.frame()
    bench.until(FRESH)
    time.sleep(0.4)
    began = time.monotonic()
    bench.loop.stop()
    assert time.monotonic() - began < 5.0 and not bench.loop.is_alive()
    assert bench.until(STOP).velocities[-1].tolist() == [0, 0]
    assert not bench.setpoints[-1].velocities.any()
    assert bench.setpoints[-1].values[0] < 3.0


def test_idle_loop_stops_without_a_command(bench):
    bench.loop.stop()
    assert bench.commands.empty()


def test_stop_from_another_thread_wakes_an_idle_loop(bench):
    bench.frame()
    bench.until(FRESH)
    threading.Thread(target=bench.safety.stop, args=('a person',)).start()
    assert bench.until(STOP).source == STOP
    bench.loop.hold()
    assert bench.until(HOLD).source == HOLD


def test_request_wakes_an_idle_loop(bench):
    time.sleep(0.05)
    bench.loop.hold()
    assert bench.until(HOLD).source == HOLD


def test_prepare_is_called_first():
    prepared = []
    bench = Bench(prepare=lambda: prepared.append(threading.current_thread()))
    bench.loop.stop()
    assert prepared == [bench.loop]
