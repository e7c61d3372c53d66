"""The one device of a fleet in virtual time: one unit of work at a time, charged by its CPU time.

Knows the order of work, which is that of the engine thread: batches of chunks first; jobs of each
robot and the text of all share the rest fairly. Does not know what the work computes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.fleet.serving.schedule import Schedule
from embodied_kv.engine.engine_thread import PATIENCE, TEXT
from embodied_kv.engine.idle_work import FairShares
from embodied_kv.fleet.request_timing import LATE

Work = Callable[[], object]


@dataclass(frozen=True)
class Job:
    """Work of a kind, queued at `since` (s). promise: None if nothing waits for its result.

    client: whose share of the time it takes; '' for chunks.
    """

    kind: str
    work: Work
    since: float
    promise: Future | None = None
    client: str = ''


class Device:
    """The device and its queues.

    clock: returns the s of work so far. fits: returns whether a job of a kind fits between a
    moment and the next expected request of a chunk; else the job waits, but no longer than in the
    engine thread. words: returns the next unit of language work, if there is one and it fits.
    talkers: returns the number of robots with text, each of which has a share. on_begin, on_unit:
    called before and after each unit. on_job: called with the kind and the s of each job. spent,
    units: s and number of units, by kind of work.
    """

    def __init__(
        self,
        schedule: Schedule,
        clock: Callable[[], float],
        fits: Callable[[str, float], bool],
        words: Callable[[float], Work | None],
        talkers: Callable[[], int] = lambda: 1,
        on_begin: Callable[[], object] = lambda: None,
        on_unit: Callable[[], object] = lambda: None,
        on_job: Callable[[str, float], object] = lambda kind, seconds: None,
    ) -> None:
        self._schedule, self._clock, self._fits = schedule, clock, fits
        self._words, self._talkers = words, talkers
        self._on_begin, self._on_unit, self._on_job = on_begin, on_unit, on_job
        self._chunks: deque[Job] = deque()
        self._jobs: dict[str, deque[Job]] = defaultdict(deque)  # by client
        self._shares = FairShares()
        self._again = -1.0
        self._is_busy = self.is_gone = False
        self.spent: Counter[str] = Counter()
        self.units: Counter[str] = Counter()

    def serve(self, work: Work) -> Future:
        """Queue a batch of chunks, which comes before all other work."""
        return self._post(self._chunks, 'chunks', work)

    def call(self, kind: str, work: Work, client: str) -> Future:
        """Queue a job of any other kind. client: whose share of the time it takes."""
        return self._post(self._jobs[client], kind, work, client)

    def _post(self, queue: deque[Job], kind: str, work: Work, client: str = '') -> Future:
        promise: Future = Future()
        queue.append(Job(kind, work, self._schedule.now, promise, client))
        return promise

    def next(self) -> None:
        """Begin the next work if the device is free; called where the schedule runs."""
        if self._is_busy or self.is_gone:
            return
        if self._chunks:
            return self._do(self._chunks.popleft())
        now = self._schedule.now
        waiting = [client for client, jobs in self._jobs.items() if jobs]
        for client in self._shares.order([*waiting, TEXT]):
            if client == TEXT:
                if (work := self._words(now)) is not None:
                    return self._do(Job('words', work, now, client=TEXT))
                continue
            job = self._jobs[client][0]
            if now - job.since >= PATIENCE or self._fits(job.kind, now):
                return self._do(self._jobs[client].popleft())
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
        if job.client == TEXT:
            self._shares.served(TEXT, took, self._talkers())
        elif job.client:
            self._shares.served(job.client, took)
            self._on_job(job.kind, took)
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
