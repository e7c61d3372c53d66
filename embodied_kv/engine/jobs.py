"""Work that waits for the device thread, in queues by urgency, with a Future for each piece.

Knows futures and one lock. Does not know the engine, nor in which order the queues are served.
Every Future is answered: with a result or an error, cancelled, or with what ended the thread.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

T = TypeVar('T')


class Queue(Enum):
    """Who waits: an action's chunk, a frame's row, or work without a deadline."""

    DENOISE = 'denoise'
    PREFILL = 'prefill'
    BACKGROUND = 'background'


@dataclass(eq=False)
class Job:
    """A piece of work and the promise of its result; it has let go of both once it ran."""

    work: Callable[[], object] | None
    future: Future | None = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)  # s

    def run(self, finish: Callable[[], object] = lambda: None) -> bool:
        """Do the work unless it was cancelled; resolve the future -> whether there is a result.

        finish: called after the work, also after one that failed; it returns when the device has
        done what was launched. The future is resolved after that, so a result is whole, and no
        job pays for the work of the one before.

        An error keeps the lines where it was raised, and no local variable there: it may live
        until the next garbage collection, and images are no weight to the collector.
        """
        work, future, self.work, self.future = self.work, self.future, None, None
        if not future.set_running_or_notify_cancel():
            return False
        try:
            try:
                result = work()
            finally:
                finish()
        except BaseException as error:  # whatever it is, it belongs to who submitted
            traceback.clear_frames(error.__traceback__)
            future.set_exception(error)
            return False
        else:
            future.set_result(result)
            return True
        finally:
            del work, future  # for it keeps this frame, too


class Jobs:
    """Submitted from any thread, taken by one."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._queues: dict[Queue, deque[Job]] = {queue: deque() for queue in Queue}
        self._fault: BaseException | None = None  # what ended the thread, unless it was stopped
        self.closed = False

    def submit(
        self,
        queue: Queue,
        work: Callable[[], T],
        done: Callable[[Future[T]], object] | None = None,
    ) -> Future[T]:
        """The promise of the work's result; refused at once where jobs are closed.

        done: called with the future when it is resolved, by the thread that runs the work. A
        callback that is added to the future later may be called by the thread that adds it.
        """
        job = Job(work)
        if done is not None:
            job.future.add_done_callback(done)
        with self._wake:
            if not self.closed:
                self._queues[queue].append(job)
                self._wake.notify()
                return job.future
        self._refuse(job.future)
        return job.future

    def oldest(self, queue: Queue) -> Job | None:
        """Return the job that `take` takes next, None if there is none."""
        with self._wake:
            return next(iter(self._queues[queue]), None)

    def take(self, queue: Queue) -> Job | None:
        """The oldest job of this queue, None if there is none."""
        with self._wake:
            waiting = self._queues[queue]
            return waiting.popleft() if waiting else None

    def notify(self) -> None:
        """Ends a wait: there may be something else to do."""
        with self._wake:
            self._wake.notify()

    def wait(self, seconds: float, queues: Collection[Queue] = tuple(Queue)) -> None:
        """Until a job of these queues is there, somebody notifies, or so many seconds are over."""
        with self._wake:
            if not (self.closed or any(self._queues[queue] for queue in queues)):
                self._wake.wait(seconds)

    def close(self, fault: BaseException | None = None) -> None:
        """No job is taken any more, and those that wait are refused. fault: why, if it is one."""
        with self._wake:
            self.closed, self._fault = True, self._fault or fault
            waiting = [job for queue in self._queues.values() for job in queue]
            for queue in self._queues.values():
                queue.clear()
            self._wake.notify()
        for job in waiting:
            self._refuse(job.future)

    def _refuse(self, future: Future) -> None:
        if self._fault is None:
            future.cancel()
        elif future.set_running_or_notify_cancel():
            error = RuntimeError(f'the device thread ended: {self._fault!r}; restart its process')
            error.__cause__ = self._fault
            future.set_exception(error)
