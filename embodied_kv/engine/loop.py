"""The loop of the one thread that computes: prefill, denoise, publish, decode.

An action holds the thread from its handle to its finished chunk; a prefill from start to end;
language and background work give it back after every step, and begin none while the action of a
frame that was just prefilled is on its way. Who submits gets a Future and never waits in a
callback: what is made is published from the Future's completion, before anything else begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.jobs import Jobs, Queue
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.runtime.stream import Stream
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, Guide, Observation, TextDelta

T = TypeVar('T')
Guiding = Callable[[], Guide | None]
HANDOVER = 0.005  # s that the slack waits for the action of a frame that was just prefilled
IDLE = 0.05  # s between two checks for language when nothing is submitted


class DeviceThread(threading.Thread):
    """Runs an engine.

    on_deltas: called on this thread with what language said; must be quick. What it raises is
    logged.
    """

    def __init__(self, engine: Engine, on_deltas: Callable[[Sequence[TextDelta]], None]) -> None:
        super().__init__(name='device', daemon=True)
        self.engine, self._on_deltas = engine, on_deltas
        self._jobs = Jobs()
        self._newest: dict[str, Future] = {}  # robot -> its prefill that was submitted last
        self._awaited_until = 0.0  # until then an action is on its way
        self._acts = False  # does anybody denoise what is prefilled?
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
        except BaseException as error:
            logging.getLogger(__name__).critical('the device thread ended', exc_info=True)
            fault = error
        finally:
            self._jobs.close(fault)

    def _turn(self) -> None:
        """What must not wait goes first; language gets the slack that is left."""
        if denoise := self._jobs.take(Queue.DENOISE):
            denoise.run()  # a leased row becomes a chunk, which its node publishes at once
        elif (on_its_way := self._awaited_until - time.monotonic()) > 0:
            self._jobs.wait(on_its_way, [Queue.DENOISE])  # the action of the last frame
        elif prefill := self._jobs.take(Queue.PREFILL):
            prefill.run()  # a frame becomes a row, whose handle its node publishes at once
        elif step := self._jobs.take(Queue.BACKGROUND):
            step.run()  # of a plan, say
        elif self.engine.decode_fits(time.monotonic()):
            self._publish(self.engine.decode)  # all live streams a token further, in one batch
        else:
            self._publish(self.engine.deltas)  # the rest of streams that were ended elsewhere
            self._jobs.wait(IDLE)

    def _prefill(self, observation: Observation) -> KvHandle:
        (handle,) = self.engine.prefill([observation])
        if self._acts:
            self._awaited_until = time.monotonic() + HANDOVER
        return handle

    def _denoise(self, lease: Lease, deadline: float, guiding: Guiding) -> ActionChunk | None:
        self._awaited_until, self._acts = 0.0, True
        return next(iter(self.engine.denoise([lease], [deadline], None, [guiding()])), None)

    def _publish(self, work: Callable[[], list[TextDelta]]) -> None:
        """Language has no deadline: whatever fails in it, the robot goes on acting."""
        try:
            deltas = work()
        except Exception as error:  # streams that it ended say so with the next deltas
            self._faults('work', f'language work failed\n{trace(error)}')
            return
        try:
            if deltas:
                self._on_deltas(deltas)
        except Exception as error:
            self._faults('on_deltas', f'on_deltas failed\n{trace(error)}')

    # ------------------------------------------------------------------ from any thread

    def prefill(self, observation: Observation) -> Future[KvHandle]:
        """Prefill this frame.

        One of the same robot that has not begun is cancelled: only the newest counts.
        """
        older = self._newest.get(observation.robot)
        future = self._jobs.submit(Queue.PREFILL, partial(self._prefill, observation))
        self._newest[observation.robot] = future
        if older is not None:
            older.cancel()
        return future

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
        """Run a short step of work that has no deadline, when no action or prefill waits."""
        return self._jobs.submit(Queue.BACKGROUND, work)

    def wake(self) -> None:
        """There may be language work: a stream was opened, or ended from elsewhere."""
        self._jobs.notify()

    def stop(self) -> None:
        """Ends the thread after the work in hand; what waits is cancelled."""
        self._jobs.close()
        if self.is_alive():
            self.join()
