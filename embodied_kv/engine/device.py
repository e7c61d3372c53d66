"""One thread that does all the computing: actions, then prefills, then what has no deadline.

An action holds the thread from its handle to its finished chunk; a prefill from start to end;
language and spare work give it back after every step, and begin none while the action of a frame
that was just prefilled is on its way. Who submits gets a Future and never waits in a callback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.types import ActionChunk, Observation, TextDelta

T = TypeVar('T')
HANDOVER = 0.005  # s that the slack waits for the action of a frame that was just prefilled
IDLE = 0.05  # s between two looks at the clock when nothing is submitted


class DeviceThread(threading.Thread):
    """Runs an engine. on_deltas: called on this thread with what language said; must be quick."""

    def __init__(self, engine: Engine, on_deltas: Callable[[Sequence[TextDelta]], None]) -> None:
        super().__init__(name='device', daemon=True)
        self.engine, self._on_deltas = engine, on_deltas
        self._wake = threading.Condition()
        self._actions: deque[tuple[Future, Callable]] = deque()
        self._prefills: deque[tuple[Future, Callable]] = deque()
        self._spare: deque[tuple[Future, Callable]] = deque()
        self._waiting: dict[str, Future] = {}  # robot -> its prefill that has not begun
        self._awaited_until = 0.0
        self._acts = False  # does anybody denoise what is prefilled?
        self._stopping = False

    # ----------------------------------------------------------------- submitting, from any thread

    def prefill(self, observation: Observation) -> Future[KvHandle]:
        """Prefill this frame.

        One of the same robot that has not begun is cancelled: only the newest counts.
        """
        future = self._submit(self._prefills, lambda: self._prefill(observation))
        with self._wake:
            older = self._waiting.get(observation.robot)
            self._waiting[observation.robot] = future
        if older is not None:
            older.cancel()
        return future

    def denoise(self, lease: Lease, deadline: float) -> Future[ActionChunk | None]:
        """Denoise from a leased row; None if no chunk can be finished in time.

        The lease stays the caller's.
        """

        def work() -> ActionChunk | None:
            self._awaited_until, self._acts = 0.0, True
            return next(iter(self.engine.denoise([lease], [deadline])), None)

        return self._submit(self._actions, work)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run any other work on the thread, in turn with the prefills."""
        return self._submit(self._prefills, work)

    def spare(self, work: Callable[[], T]) -> Future[T]:
        """Run a short step of work that has no deadline, when no action or prefill waits."""
        return self._submit(self._spare, work)

    def wake(self) -> None:
        """There may be language work: a stream was opened, or ended from elsewhere."""
        with self._wake:
            self._wake.notify()

    def stop(self) -> None:
        """Finish the work in hand, cancel what waits, and join."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self.is_alive():
            self.join()
        for future, _ in (*self._actions, *self._prefills, *self._spare):
            future.cancel()

    def _submit(self, queue: deque, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._wake:
            if self._stopping:
                future.cancel()
            else:
                queue.append((future, work))
                self._wake.notify()
        return future

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        torch.set_num_threads(self.engine.config.threads)
        while not self._stopping:
            job = self._next()
            if job is not None:
                _finish(*job)
            elif self._language_may_run():
                self._speak(self.engine.decode)
            else:
                self._speak(self.engine.deltas)
                self._rest()

    def _next(self) -> tuple[Future, Callable] | None:
        with self._wake:
            queue = self._actions or self._prefills
            if not queue and time.monotonic() >= self._awaited_until:
                queue = self._spare
            return queue.popleft() if queue else None

    def _prefill(self, observation: Observation) -> KvHandle:
        (handle,) = self.engine.prefill([observation])
        if self._acts:
            self._awaited_until = time.monotonic() + HANDOVER
        return handle

    def _language_may_run(self) -> bool:
        now = time.monotonic()
        return now >= self._awaited_until and self.engine.decode_fits(now)

    def _speak(self, work: Callable[[], list[TextDelta]]) -> None:
        try:
            deltas = work()
        except Exception:  # the streams were ended and say so; the robot goes on acting
            logging.getLogger(__name__).exception('language work failed; its streams were ended')
            deltas = self.engine.deltas()
        if deltas:
            self._on_deltas(deltas)

    def _rest(self) -> None:
        now = time.monotonic()
        pause = self._awaited_until - now if now < self._awaited_until else IDLE
        with self._wake:
            if not (self._actions or self._prefills or self._stopping):
                self._wake.wait(pause)


def _finish(future: Future, work: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:  # whatever went wrong belongs to who asked; the thread lives on
        future.set_exception(error)
