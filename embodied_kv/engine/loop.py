"""The loop of the one thread that computes: prefill, denoise, publish, decode.

An action holds the thread from its handle to its finished chunk; a prefill from start to end;
language and background work give it back after every step, and begin none where the idle time does
not hold what a step was measured to take. Who submits gets a Future and never waits in a callback:
what is made is published from the Future's completion, before anything else begins. The action of
a frame is submitted in the completion of its prefill, so it comes next.

A job ends when the device has done its work: its result is whole on every stream, and the next job
is not charged with it. An error ends the job, and for language the streams, but not the thread.
The exception is a device that cannot be waited for: it lost its context, which no process gets
back, so `on_lost` is called; it ends the process unless another function is given.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import Job, Jobs, Queue
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.runtime.stream import Stream
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, Guide, Observation, TextDelta

T = TypeVar('T')
Guiding = Callable[[], Guide | None]
IDLE = 0.05  # s between two checks for language when nothing is submitted
PATIENCE = 0.25  # s after which a background step begins although the idle time does not hold it
LOST = 70  # exit status of a process whose device is lost (EX_SOFTWARE)


def kind_of(work: Callable) -> str:
    """Return the kind of a background step: steps of one function take about as long."""
    while inner := getattr(work, '__wrapped__', None) or getattr(work, 'func', None):
        work = inner
    return f'background {getattr(work, "__qualname__", type(work).__qualname__)}'


def end_process(error: BaseException) -> None:
    """End the process at once with status 70, so that its launch file can start it again.

    Exit handlers do not run: they would use the lost device, and may hang in its driver.
    """
    text = f'the device is lost ({error}): the process ends with status {LOST}'
    logging.getLogger(__name__).critical(text)
    os._exit(LOST)


class EngineThread(threading.Thread):
    """Runs an engine.

    on_deltas: called on this thread with what language said; must be quick. What it raises is
    logged. on_lost: called on this thread, as its last act, with the error of a lost device; all
    futures are resolved by then.
    """

    def __init__(
        self,
        engine: Engine,
        on_deltas: Callable[[Sequence[TextDelta]], None],
        on_lost: Callable[[BaseException], object] = end_process,
    ) -> None:
        super().__init__(name='device', daemon=True)
        self.engine, self._on_deltas, self._on_lost = engine, on_deltas, on_lost
        self._jobs = Jobs()
        self._newest: dict[str, Future] = {}  # robot -> its newest prefill, until that is done
        self._naming = threading.Lock()  # held to look at `_newest`
        self._lost: BaseException | None = None
        self._faults = Throttled(logging.getLogger(__name__).error)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        fault = None
        try:
            torch.set_num_threads(self.engine.config.threads)
            device = self.engine.policy.model.device
            stream = Stream.on(device)  # nobody else launches on it, or relies on its order
            stream.wait(Stream.current(device).record())  # as the engine was made
            with stream.use():
                while not self._jobs.closed:
                    self._turn()
                    if self._lost is not None:
                        raise self._lost
        except BaseException as error:
            logging.getLogger(__name__).critical('the device thread ended', exc_info=True)
            fault = error
        finally:
            self._jobs.close(fault)
        if self._lost is not None:
            self._on_lost(self._lost)

    def _turn(self) -> None:
        """What must not wait goes first; language gets the slack that is left."""
        if denoise := self._jobs.take(Queue.DENOISE):
            # A leased row becomes a chunk, which its node publishes at once.
            denoise.run(self._finish)
        elif prefill := self._jobs.take(Queue.PREFILL):
            # A frame becomes a row; its action is submitted before the next turn.
            prefill.run(self._finish)
        elif step := self._fitting_step():
            began = time.monotonic()
            kind = kind_of(step.work)
            if step.run(self._finish):  # of a plan, say
                self.engine.latency.observe(kind, time.monotonic() - began)
        elif self._decode_fits():
            self._publish(self.engine.decode)  # all live streams a token further, in one batch
        else:
            self._publish(self.engine.deltas)  # the rest of streams that were ended elsewhere
            # A step that waits for idle time does not end the wait; a frame does.
            held = self._jobs.oldest(Queue.BACKGROUND) is not None
            self._jobs.wait(IDLE, [Queue.DENOISE, Queue.PREFILL] if held else tuple(Queue))

    def _finish(self) -> None:
        """Return when the device has done what was launched. An error means that it is lost."""
        try:
            Stream.current(self.engine.policy.model.device).synchronize()
        except Exception as error:
            self._lost = error
            raise

    def _fitting_step(self) -> Job | None:
        """Take the oldest background step if the idle time holds one, or if it waited too long."""
        step, now = self._jobs.oldest(Queue.BACKGROUND), time.monotonic()
        if step is None:
            return None
        try:
            waited = now - step.submitted > PATIENCE
            fits = waited or self.engine.budget.admits(now, kind_of(step.work))
        except Exception as error:
            self._faults('admits', f'the idle time is not known\n{trace(error)}')
            fits = True
        return self._jobs.take(Queue.BACKGROUND) if fits else None

    def _decode_fits(self) -> bool:
        """As the engine's; an error ends the live streams, as one of their decode step does."""
        try:
            return self.engine.decode_fits(time.monotonic())
        except Exception as error:
            self._faults('decode_fits', f'language work cannot be planned\n{trace(error)}')
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
        """Language has no deadline: whatever fails in it, the robot goes on acting."""
        try:
            try:
                deltas = work()
            finally:
                self._finish()
        except Exception as error:  # streams that it ended say so with the next deltas
            self._faults('work', f'language work failed\n{trace(error)}')
            return
        try:
            if deltas:
                self._on_deltas(deltas)
        except Exception as error:
            self._faults('on_deltas', f'on_deltas failed\n{trace(error)}')

    # ------------------------------------------------------------------ from any thread

    def prefill(
        self,
        observation: Observation,
        done: Callable[[Future[KvHandle]], object] | None = None,
    ) -> Future[KvHandle]:
        """Prefill this frame.

        One of the same robot that has not begun is cancelled: only the newest counts. done: called
        with the future on this thread, before the thread begins anything else, so that a denoising
        that it submits comes next; for a frame that is cancelled, on the thread that cancels it.
        """
        robot, work = observation.robot, partial(self._prefill, observation)
        with self._naming:
            older = self._newest.get(robot)
            future = self._jobs.submit(Queue.PREFILL, work, done)
            self._newest[robot] = future
        future.add_done_callback(partial(self._forget, robot))
        if older is not None:
            older.cancel()
        return future

    def _forget(self, robot: str, prefill: Future) -> None:
        """Drop a prefill that is done, so that no robot is remembered longer than it has one."""
        with self._naming:
            if self._newest.get(robot) is prefill:
                del self._newest[robot]

    def denoise(
        self, lease: Lease, deadline: float, guiding: Guiding = lambda: None
    ) -> Future[ActionChunk | None]:
        """Denoise from a leased row; None if no chunk can be finished in time.

        The lease stays the caller's. guiding: asked as the work begins, on this thread, what the
        chunk goes on from.
        """
        return self._jobs.submit(Queue.DENOISE, partial(self._denoise, lease, deadline, guiding))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run any other work on the thread, in turn with the prefills."""
        return self._jobs.submit(Queue.PREFILL, work)

    def background(self, work: Callable[[], T]) -> Future[T]:
        """Run a short step of work that has no deadline, in the idle time between two frames.

        It begins when no action or prefill waits, and the time until the next frame holds what
        steps of its kind were measured to take; after PATIENCE s at the latest where no prefill
        waits.
        """
        return self._jobs.submit(Queue.BACKGROUND, work)

    def wake(self) -> None:
        """There may be language work: a stream was opened, or ended from elsewhere."""
        self._jobs.notify()

    def stop(self) -> None:
        """Ends the thread after the work in hand; what waits is cancelled."""
        self._jobs.close()
        if self.is_alive():
            self.join()
