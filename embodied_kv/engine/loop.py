"""One thread that does all the computing: actions, then prefills, then what has no deadline.

An action holds the thread from its handle to its finished chunk; a prefill from start to end;
language and spare work give it back after every step, and begin none while the action of a frame
that was just prefilled is on its way. Who submits gets a Future and never waits in a callback;
every Future is answered, cancelled, or given what ended the thread.
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
    """Runs an engine.

    on_deltas: called on this thread with what language said; must be quick. What it raises is
    logged.
    """

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
        self._fault: BaseException | None = None  # what ended the thread, if it was not `stop`

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
        self._close()

    def _submit(self, queue: deque, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._wake:
            is_open = not self._stopping
            if is_open:
                queue.append((future, work))
                self._wake.notify()
        if not is_open:
            self._refuse(future)
        return future

    def _refuse(self, future: Future) -> None:
        """Nobody will run its work any more: it is cancelled, or told what ended the thread."""
        if self._fault is None:
            future.cancel()
        elif future.set_running_or_notify_cancel():
            error = RuntimeError(f'the device thread ended: {self._fault!r}; restart its process')
            error.__cause__ = self._fault
            future.set_exception(error)

    def _close(self) -> None:
        """Takes no more work, and refuses what waits."""
        with self._wake:
            self._stopping = True
            waiting = [*self._actions, *self._prefills, *self._spare]
            for queue in (self._actions, self._prefills, self._spare):
                queue.clear()
        for future, _ in waiting:
            self._refuse(future)

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        try:
            torch.set_num_threads(self.engine.config.threads)
            while not self._stopping:
                self._turn()
        except BaseException as error:
            logging.getLogger(__name__).critical('the device thread ended', exc_info=True)
            self._fault = error
        finally:
            self._close()

    def _turn(self) -> None:
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
        """Words have no deadline: whatever fails in them, the robot goes on acting."""
        try:
            deltas = work()
        except Exception:  # streams that it ended say so with the next deltas
            logging.getLogger(__name__).exception('language work failed')
            return
        try:
            if deltas:
                self._on_deltas(deltas)
        except Exception:
            logging.getLogger(__name__).exception('who listens to language failed')

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
        result = work()
    except BaseException as error:  # whatever it is, it belongs to who asked; the thread lives on
        future.set_exception(error)
    else:
        future.set_result(result)
