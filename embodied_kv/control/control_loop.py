"""The thread that keeps the control period: one command in each, on absolute deadlines.

Knows the steady clock and the trajectory executor. Does not know messages, and never computes:
chunks are handed to it finished. A fresh chunk goes out as soon as it is there; when the deadline
passes without one, the fallback goes out: the rest of the previous chunk, up to its execution
horizon, then hold, then stop. What was left of an earlier chunk may be resumed; it goes out as a
previous one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from embodied_kv.control.command import Command, Leftover
from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, STOP, TrajectoryExecutor
from embodied_kv.types import ActionChunk

UNKNOWN = np.empty(0, np.float32)  # the confidence in what nobody denoised, or nobody remembers


class ControlLoop(threading.Thread):
    """Gives out a Command per control period and a set-point float64 [joints] per action.

    period: s. position: the robot's joints [joints] now, or None while nobody knows. publish,
    publish_setpoint: take the two, on this thread. failed: takes the reason for which a chunk
    could not be executed. prepare: is called first.
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        period: float,
        *,
        position: Callable[[], np.ndarray | None],
        publish: Callable[[Command], None],
        publish_setpoint: Callable[[np.ndarray], None],
        failed: Callable[[Exception], None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name='control loop', daemon=True)
        self.executor, self._period = executor, period
        self._position, self._prepare, self._failed = position, prepare, failed
        self._publish, self._publish_setpoint = publish, publish_setpoint
        self._wake = threading.Condition()
        self._offered: ActionChunk | None = None
        self._asked: list[Callable[[], None]] = []  # to be done on this thread, before the offer
        self._expected = -math.inf  # deadline of the newest frame that is being worked on
        self._deadline = math.inf  # when the control period ends; not before the first frame
        self._next_setpoint = math.inf
        self._command: Command | None = None  # the newest chunk, as it was published
        self._running: tuple[Leftover, float] | None = None  # what was to come, from when on
        self._located = False
        self._stopping = False

    # ------------------------------------------------------------------ from any thread

    def expect(self, deadline: float) -> None:
        """A chunk is being made for this deadline."""
        with self._wake:
            self._expected = deadline
            self._wake.notify()

    def offer(self, chunk: ActionChunk) -> None:
        """A chunk is finished."""
        with self._wake:
            self._offered = chunk
            self._wake.notify()

    def resume(self, leftover: Leftover, stamp: int) -> None:
        """What was left of an earlier chunk begins now, until a fresh one takes over.

        stamp: ns on the ROS clock, of now.
        """
        self._ask(lambda: self._resume(leftover, stamp))

    def hold(self) -> None:
        """Stay where the robot was sent last, until a fresh chunk takes over."""
        self._ask(self._hold)

    def leftover(self) -> Leftover | None:
        """What is still to come of the chunk that runs; None if nothing is."""
        running = self._running
        if running is None:
            return None
        (whole, began), now = running, time.monotonic()
        passed = max(0, math.ceil((now - began) / self.executor.dt))
        values = whole.values[passed:]
        return replace(whole, values=values, age=whole.age + now - began) if len(values) else None

    def _ask(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._asked.append(work)
            self._wake.notify()

    def stop(self) -> None:
        """End the thread; the robot is told to stop where it is, if it ever was told anything."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self.join()

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        self._prepare()
        while True:
            with self._wake:
                if self._offered is None and not self._asked and not self._stopping:
                    self._wake.wait(self._pause())
                chunk, self._offered = self._offered, None
                asked, self._asked = self._asked, []
                self._begin_period()
                if self._stopping:
                    break
            try:
                self._work(chunk, asked)
            except Exception as error:  # the loop must not stop: the next period is another try
                self._failed(error)
        if self._command is not None:
            self._publish(self._fallback(STOP, time.monotonic()))

    def _pause(self) -> float | None:
        """Seconds until something is due; None if nothing ever is."""
        due = min(self._deadline_now(), self._next_setpoint)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _begin_period(self) -> None:
        if self._deadline == math.inf and self._expected > -math.inf:
            self._deadline = max(self._expected, time.monotonic())

    def _deadline_now(self) -> float:
        """End of this period: the frame's that is worked on, if that is a little later."""
        return max(self._deadline, min(self._expected, self._deadline + self._period))

    def _work(self, chunk: ActionChunk | None, asked: Sequence[Callable[[], None]]) -> None:
        self._locate()
        for work in asked:
            work()
        if chunk is not None:
            self._take(chunk)
        now = time.monotonic()
        if now >= self._deadline_now():
            source = self.executor.missed(now)
            self._deadline = max(self._deadline_now(), now - self._period) + self._period
            if source == STOP:
                self._running = None
            self._publish(self._fallback(source, now))
        if now >= self._next_setpoint:
            self._next_setpoint = max(self._next_setpoint + self.executor.dt, now)
            self._publish_setpoint(self.executor.due(now).values)

    def _locate(self) -> None:
        """The first command starts from where the robot is, if somebody knows."""
        joints = None if self._located else self._position()
        if joints is not None:
            self.executor.hold_at(joints)
            self._located = True

    def _take(self, chunk: ActionChunk) -> None:
        began, now = chunk.deadline - self._period, time.monotonic()
        taken = self.executor.take_over(chunk, began, now)
        if taken.values is None:  # all that may be executed of it is over: what runs goes on
            if taken.first < len(chunk.values):
                horizon = chunk.execution_horizon
                reason = f'all {horizon} actions of its execution horizon have passed'
                self._failed(ValueError(reason))
            return
        points, times = self.executor.remaining(now)
        self._located = True
        self._command = Command(
            values=taken.values,
            dt=chunk.dt,
            stamp=chunk.stamp,
            first=taken.first,
            execution_horizon=len(chunk.values)
            if chunk.execution_horizon is None
            else chunk.execution_horizon,
            confidence=UNKNOWN if chunk.confidence is None else chunk.confidence,
            sequence=chunk.sequence,
            age=now - began,
            steps=chunk.steps,
            source=FRESH,
            deadline_met=now <= chunk.deadline,
            prefill_ms=chunk.prefill_ms,
            denoise_ms=chunk.denoise_ms,
            points=points,
            times=times,
        )
        due = now + times[0]
        whole = Leftover(points, chunk.stamp, due - began, chunk.sequence, chunk.steps)
        self._running = whole, due
        self._deadline = max(self._deadline, chunk.deadline + self._period)
        self._next_setpoint = began + taken.first * chunk.dt
        self._publish(self._command)

    def _resume(self, leftover: Leftover, stamp: int) -> None:
        now = time.monotonic()
        self.executor.resume(leftover.values, now - leftover.age, now)
        points, times = self.executor.remaining(now)
        self._command = Command(
            values=points,
            dt=self.executor.dt,
            stamp=stamp,
            first=0,
            execution_horizon=len(points),
            confidence=UNKNOWN,
            sequence=leftover.sequence,
            age=leftover.age,
            steps=leftover.steps,
            source=PREVIOUS,
            deadline_met=False,
            prefill_ms=0.0,
            denoise_ms=0.0,
            points=points,
            times=times,
        )
        self._running = replace(leftover, values=points), now
        self._next_setpoint = now
        self._publish(self._command)

    def _hold(self) -> None:
        now = time.monotonic()
        stays = self.executor.due(now).values
        if stays is not None:
            self.executor.hold_at(stays)
        self._running = None
        self._publish(self._fallback(HOLD, now))

    def _fallback(self, source: str, now: float) -> Command:
        """What is said in a period without a fresh chunk."""
        points, times = self.executor.remaining(now)
        due = self.executor.due(now)
        last = self._command
        if not len(points) or source in (HOLD, STOP):
            held = [] if due.values is None else [due.values]
            points = np.array(held, np.float64).reshape(-1, self.executor.joints)
            times = np.full(len(points), self.executor.dt)
        chunk = last is not None and source == PREVIOUS
        return Command(
            values=last.values if chunk else points,
            dt=self.executor.dt,
            stamp=last.stamp if chunk else None,
            first=last.execution_horizon - len(points) if chunk else 0,
            execution_horizon=last.execution_horizon if chunk else len(points),
            confidence=last.confidence if chunk else UNKNOWN,
            sequence=last.sequence if last else 0,
            age=due.age,
            steps=last.steps if last else 0,
            source=source,
            deadline_met=False,
            prefill_ms=last.prefill_ms if last else 0.0,
            denoise_ms=last.denoise_ms if last else 0.0,
            points=points,
            times=times,
        )
