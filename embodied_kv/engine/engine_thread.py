"""The only thread that computes: it runs units of work, those with a deadline first.

A chunk is denoised, and a frame prefilled, without interruption; equal work runs by its deadline.
Steps of plans and of text run in the idle time, in fair shares (`engine.idle_work`), and none
starts if the idle time is shorter than its measured time. A caller gets a Future; its callbacks
run on this thread before the next job and publish the result. The callback of a prefill submits
the denoising of its frame, which therefore comes next.

A job ends when the device has done its work, so that its result is complete on every stream, and
the next job's time does not include it. An error ends the job, and for language the streams, but
not the thread. If waiting for the device fails, its context is lost, which no process can restore:
`on_lost` is called, which ends the process by default.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.idle_work import FairShares
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.runtime.stream import Stream
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, Guide, Observation, TextDelta

T = TypeVar('T')
Guiding = Callable[[], Guide | None]
IDLE = 0.05  # s between two checks for language when nothing is submitted
PATIENCE = 0.25  # s until a background step begins even if the idle time is too short
TEXT = 'text'  # the client of the idle time for all decode streams
LOST = 70  # exit status of a process whose device is lost (EX_SOFTWARE)


class Priority(Enum):
    """The queues of jobs, highest priority first: chunks, frames, work without a deadline."""

    DENOISE = 'denoise'
    PREFILL = 'prefill'
    BACKGROUND = 'background'


@dataclass(eq=False)
class Job:
    """A piece of work and the future of its result; it drops both when it has run.

    deadline: s, steady clock. client: whose share of the idle time a background step takes.
    """

    work: Callable[[], object]
    deadline: float = math.inf
    client: str = ''
    future: Future[Any] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)  # s

    def run(self, finish: Callable[[], object] = lambda: None) -> bool:
        """Do the work unless it was cancelled, resolve the future, return whether it succeeded.

        finish: called after the work, also after an error; it returns when the device has done
        what was launched. The future is resolved after that, so a result is complete, and the time
        of the next job does not include this one.

        The traceback of an error keeps no local variables, because it may live until the next
        garbage collection, and would keep images until then.
        """
        work, future = self.work, self.future
        del self.work, self.future
        if not future.set_running_or_notify_cancel():
            return False
        try:
            try:
                result = work()
            finally:
                finish()
        except BaseException as error:  # any error belongs to the caller
            traceback.clear_frames(error.__traceback__)
            future.set_exception(error)
            return False
        else:
            future.set_result(result)
            return True
        finally:
            del work, future  # the traceback of the error holds this stack frame


class JobQueue:
    """Jobs by priority, submitted from any thread and run by one. Every future is resolved."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._queues: dict[Priority, deque[Job]] = {priority: deque() for priority in Priority}
        self._fault: BaseException | None = None  # the error that ended the thread
        self.closed = False

    def submit(
        self,
        priority: Priority,
        work: Callable[[], T],
        done: Callable[[Future[T]], object] | None = None,
        deadline: float = math.inf,
        client: str = '',
    ) -> Future[T]:
        """Return the future of the work's result; it is cancelled at once after `close`.

        deadline, client: see `Job`. done: called with the resolved future by the thread that runs
        the work. A callback that is added to the future later may be called by the thread that
        adds it.
        """
        job = Job(work, deadline, client)
        if done is not None:
            job.future.add_done_callback(done)
        with self._wake:
            if not self.closed:
                self._queues[priority].append(job)
                self._wake.notify()
                return job.future
        self._refuse(job.future)
        return job.future

    def pop(self, priority: Priority) -> Job | None:
        """Remove and return the most urgent job of a priority, None if there is none.

        The earliest deadline is the most urgent, among equals the job that was submitted first.
        """
        with self._wake:
            waiting = self._queues[priority]
            if job := min(waiting, key=lambda job: job.deadline, default=None):
                waiting.remove(job)
            return job

    def by_client(self) -> dict[str, Job]:
        """Return the oldest background step of each client, in the order of their submission."""
        with self._wake:
            steps: dict[str, Job] = {}
            for job in self._queues[Priority.BACKGROUND]:
                steps.setdefault(job.client, job)
            return steps

    def take(self, job: Job) -> bool:
        """Remove a background step, and return whether it was still waiting."""
        with self._wake:
            waits = job in self._queues[Priority.BACKGROUND]
            if waits:
                self._queues[Priority.BACKGROUND].remove(job)
            return waits

    def notify(self) -> None:
        """End a wait."""
        with self._wake:
            self._wake.notify()

    def wait(self, seconds: float, priorities: Collection[Priority] = tuple(Priority)) -> None:
        """Wait for a job of these priorities, for `notify`, or for so many seconds."""
        with self._wake:
            if not (self.closed or any(self._queues[one] for one in priorities)):
                self._wake.wait(seconds)

    def close(self, fault: BaseException | None = None) -> None:
        """Refuse all jobs, also waiting ones. fault: the error that ended the thread."""
        with self._wake:
            self.closed, self._fault = True, self._fault or fault
            waiting = [job for queue in self._queues.values() for job in queue]
            for queue in self._queues.values():
                queue.clear()
            self._wake.notify()
        for job in waiting:
            self._refuse(job.future)

    def _refuse(self, future: Future[Any]) -> None:
        if self._fault is None:
            future.cancel()
        elif future.set_running_or_notify_cancel():
            error = RuntimeError(f'the engine thread ended: {self._fault!r}; restart its process')
            error.__cause__ = self._fault
            future.set_exception(error)


def kind_of(work: Callable[[], object]) -> str:
    """Return the kind of a background step: its function, because its steps take similar times."""
    while inner := getattr(work, '__wrapped__', None) or getattr(work, 'func', None):
        work = inner
    return f'background {getattr(work, "__qualname__", type(work).__qualname__)}'


def end_process(error: BaseException) -> None:
    """End the process at once with status 70, so that its launch file can start it again.

    Exit handlers do not run: they would use the lost device, and may hang in its driver.
    """
    text = f'The device is lost ({error}); the process ends with status {LOST}.'
    logging.getLogger(__name__).critical(text)
    os._exit(LOST)


class EngineThread(threading.Thread):
    """The thread of an engine.

    on_deltas: called on this thread with new text; it must be quick, and its errors are logged.
    on_lost: called on this thread, as its last act, with the error of a lost device; all futures
    are resolved before.
    """

    def __init__(
        self,
        engine: Engine,
        on_deltas: Callable[[Sequence[TextDelta]], None],
        on_lost: Callable[[BaseException], object] = end_process,
    ) -> None:
        super().__init__(name='device', daemon=True)
        self.engine, self._on_deltas, self._on_lost = engine, on_deltas, on_lost
        self._jobs = JobQueue()
        self._newest: dict[str, Future[KvHandle]] = {}  # robot -> newest prefill, until it is done
        self._naming = threading.Lock()  # guards `_newest`
        self._lost: BaseException | None = None
        self._shares = FairShares()
        self._faults = Throttled(logging.getLogger(__name__).error)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        fault = None
        try:
            torch.set_num_threads(self.engine.config.threads)
            device = self.engine.policy.model.device
            stream = Stream.on(device)  # only this thread launches on it
            stream.wait(Stream.current(device).record())  # after the construction of the engine
            with stream.use():
                while not self._jobs.closed:
                    self._turn()
                    if self._lost is not None:
                        raise self._lost
        except BaseException as error:
            logging.getLogger(__name__).critical('the engine thread ended', exc_info=True)
            fault = error
        finally:
            self._jobs.close(fault)
        if self._lost is not None:
            self._on_lost(self._lost)

    def _turn(self) -> None:
        """Run one unit of work: a chunk, a prefill, or one that the idle time holds."""
        if denoise := self._jobs.pop(Priority.DENOISE):
            denoise.run(self._finish)  # its callback publishes the chunk
        elif prefill := self._jobs.pop(Priority.PREFILL):
            prefill.run(self._finish)  # its callback submits the denoising
        else:
            steps = self._jobs.by_client()
            if not self._run_idle_unit(steps):
                if not steps and not self.engine.kv.streams.live():
                    self._shares.rest()
                self._publish(self.engine.deltas)  # last text of streams that other threads ended
                # A background step that waits for idle time does not end the wait; a frame does.
                self._jobs.wait(
                    IDLE, [Priority.DENOISE, Priority.PREFILL] if steps else tuple(Priority)
                )

    def _run_idle_unit(self, steps: dict[str, Job]) -> bool:
        """Run the unit of the client that received least, if one fits; return whether one did.

        steps: the oldest background step of each client.
        """
        for client in self._shares.order([*steps, TEXT]):
            began, value = time.monotonic(), 1.0
            if client == TEXT:
                if not self._decode_fits():
                    continue
                value = self._robots_of_streams()
                self._publish(self.engine.decode)  # one step of live streams, in one batch
            else:
                step = steps[client]
                if not (self._step_fits(step, began) and self._jobs.take(step)):
                    continue
                kind = kind_of(step.work)
                if step.run(self._finish):  # for example a step of planning
                    self.engine.latency.observe(kind, time.monotonic() - began)
            self._shares.served(client, time.monotonic() - began, value)
            return True
        return False

    def _robots_of_streams(self) -> int:
        """Return the number of robots with live streams, at least 1."""
        return len({s.lease.handle.robot for s in self.engine.kv.streams.live()}) or 1

    def _finish(self) -> None:
        """Wait until the device has done what was launched. An error means that it is lost."""
        try:
            Stream.current(self.engine.policy.model.device).synchronize()
        except Exception as error:
            self._lost = error
            raise

    def _step_fits(self, step: Job, now: float) -> bool:
        """Return whether the idle time holds a background step, or it waited too long."""
        try:
            waited = now - step.submitted > PATIENCE
            return waited or self.engine.budget.admits(now, kind_of(step.work))
        except Exception as error:
            self._faults('admits', f'The idle time is unknown.\n{trace(error)}')
            return True

    def _decode_fits(self) -> bool:
        """Return `Engine.decode_fits`; an error ends the live streams."""
        try:
            return self.engine.decode_fits(time.monotonic())
        except Exception as error:
            self._faults('decode_fits', f'Language work cannot be planned.\n{trace(error)}')
            for stream in self.engine.kv.streams.live():
                self.engine.kv.streams.release(stream, 'error')
            return False

    def _prefill(self, observation: Observation) -> KvHandle:
        return self.engine.prefill([observation])[0]

    def _denoise(self, lease: Lease, deadline: float, guiding: Guiding) -> ActionChunk | None:
        chunk = next(iter(self.engine.denoise([lease], [deadline], None, [guiding()])), None)
        if isinstance(chunk, FloatingPointError):
            raise chunk
        return chunk

    def _publish(self, work: Callable[[], list[TextDelta]]) -> None:
        """Run language work; an error in it never stops the robot's actions."""
        try:
            try:
                deltas = work()
            finally:
                self._finish()
        except Exception as error:  # the next deltas report the streams that it ended
            self._faults('work', f'Language work failed.\n{trace(error)}')
            return
        try:
            if deltas:
                self._on_deltas(deltas)
        except Exception as error:
            self._faults('on_deltas', f'The callback on_deltas failed.\n{trace(error)}')

    # ------------------------------------------------------------------ from any thread

    def prefill(
        self,
        observation: Observation,
        done: Callable[[Future[KvHandle]], object] | None = None,
    ) -> Future[KvHandle]:
        """Prefill this frame.

        An older frame of the same robot that has not begun is cancelled: only the newest counts.
        done: called with the future on this thread, before the thread begins anything else, so
        that a denoising that it submits comes next; for a cancelled frame, on the thread that
        cancels it.
        """
        robot, work = observation.robot, partial(self._prefill, observation)
        with self._naming:
            older = self._newest.get(robot)
            future = self._jobs.submit(Priority.PREFILL, work, done, observation.deadline)
            self._newest[robot] = future
        future.add_done_callback(partial(self._forget, robot))
        if older is not None:
            older.cancel()
        return future

    def _forget(self, robot: str, prefill: Future[KvHandle]) -> None:
        """Drop a prefill that is done, so that no robot is remembered without one."""
        with self._naming:
            if self._newest.get(robot) is prefill:
                del self._newest[robot]

    def denoise(
        self, lease: Lease, deadline: float, guiding: Guiding = lambda: None
    ) -> Future[ActionChunk | None]:
        """Denoise from a leased row; the result is None if no chunk can be finished in time.

        The caller releases the lease. guiding: called on this thread when the work begins; returns
        the actions that the chunk continues.
        """
        work = partial(self._denoise, lease, deadline, guiding)
        return self._jobs.submit(Priority.DENOISE, work, deadline=deadline)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run any other work on the thread, in turn with the prefills: it is due in PATIENCE s."""
        due = time.monotonic() + PATIENCE
        return self._jobs.submit(Priority.PREFILL, work, deadline=due)

    def background(self, work: Callable[[], T], client: str = '') -> Future[T]:
        """Run a short step of work without a deadline, in the idle time between two frames.

        It begins when no action or prefill waits, and the idle time holds the measured time of its
        kind or the step has waited for PATIENCE s. client: whose share of the idle time it takes,
        such as the plan of a robot; each has an equal one, and text one for each robot with text.
        """
        return self._jobs.submit(Priority.BACKGROUND, work, client=client)

    def wake(self) -> None:
        """Check for language work: a stream was opened, or another thread ended one."""
        self._jobs.notify()

    def stop(self) -> None:
        """End the thread after the present job; waiting jobs are cancelled."""
        self._jobs.close()
        if self.is_alive():
            self.join()
