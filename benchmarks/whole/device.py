"""The one device of a fleet in virtual time: one unit of work at a time, charged by its CPU time.

Knows three kinds of work and their order: batches of chunks, then jobs, then language. Does not
know what the work computes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.fleet.serving.schedule import Schedule
from embodied_kv.fleet.request_timing import LATE
from embodied_kv.serving.fleet_server import PATIENCE

Work = Callable[[], object]


@dataclass(frozen=True)
class Job:
    """Work of a kind, queued at `since` (s). promise: None if nothing waits for its result."""

    kind: str
    work: Work
    since: float
    promise: Future | None = None


class Device:
    """The device and its queues.

    clock: returns the s of work so far. slack: returns the s after a moment in which no chunk is
    requested. words: returns the next unit of language work, if there is one and it fits.
    on_begin, on_unit: called before and after each unit. A job waits for slack, but no longer than
    in a node. spent, units: s and number of units, by kind of work.
    """

    def __init__(
        self,
        schedule: Schedule,
        clock: Callable[[], float],
        slack: Callable[[float], float],
        words: Callable[[float], Work | None],
        on_begin: Callable[[], object] = lambda: None,
        on_unit: Callable[[], object] = lambda: None,
    ) -> None:
        self._schedule, self._clock, self._slack = schedule, clock, slack
        self._words, self._on_begin, self._on_unit = words, on_begin, on_unit
        self._chunks: deque[Job] = deque()
        self._jobs: deque[Job] = deque()
        self._again = -1.0
        self._is_busy = self.is_gone = False
        self.spent: Counter[str] = Counter()
        self.units: Counter[str] = Counter()

    def serve(self, work: Work) -> Future:
        """Queue a batch of chunks, which comes before all other work."""
        return self._post(self._chunks, 'chunks', work)

    def call(self, kind: str, work: Work) -> Future:
        """Queue a job of any other kind."""
        return self._post(self._jobs, kind, work)

    def _post(self, queue: deque[Job], kind: str, work: Work) -> Future:
        promise: Future = Future()
        queue.append(Job(kind, work, self._schedule.now, promise))
        return promise

    def next(self) -> None:
        """Begin the next work if the device is free; called where the schedule runs."""
        if self._is_busy or self.is_gone:
            return
        if self._chunks:
            return self._do(self._chunks.popleft())
        now = self._schedule.now
        if self._jobs and (self._slack(now) > 0 or now - self._jobs[0].since >= PATIENCE):
            return self._do(self._jobs.popleft())
        if (work := self._words(now)) is not None:
            return self._do(Job('words', work, now))
        if self._again <= now:  # an expected request may not have come
            self._again = now + LATE
            self._schedule.at(self._again, lambda: None)

    def _do(self, job: Job) -> None:
        self._on_begin()
        began, finish = self._clock(), lambda: None
        with torch.inference_mode():
            if job.promise is None:
                job.work()
            else:
                finish = _promised(job.promise, job.work)
        took = self._clock() - began
        self.spent[job.kind] += took
        self.units[job.kind] += 1
        self._is_busy = True
        self._schedule.at(self._schedule.now + took, partial(self._over, finish))

    def _over(self, finish: Work) -> None:
        self._is_busy = False
        if not self.is_gone:
            finish()
            self._on_unit()


def _promised(promise: Future, work: Work) -> Work:
    """Run the work, and return a function that sets its result or error in the promise."""
    try:
        return partial(promise.set_result, work())
    except Exception as error:  # raised where the result is awaited
        return partial(promise.set_exception, error)
