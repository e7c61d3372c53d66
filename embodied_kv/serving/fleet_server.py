"""The thread that serves a fleet: requests become batches of engines, and their chunks answers.

Knows the dispatcher, the newest observation of each robot, and futures. Does not know messages,
nor what an engine is: that takes observations and promises chunks. Everything that touches the
dispatcher happens on this thread; what other threads report waits in its queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from embodied_kv.control.execution_horizon import with_execution_horizon
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import Dispatch
from embodied_kv.fleet.forecast import Forecast
from embodied_kv.fleet.protocol import Answer, Receipt, Request, Verdict
from embodied_kv.fleet.scheduler import Waiting
from embodied_kv.fleet.trace_writer import TraceWriter
from embodied_kv.serving.batch import Late
from embodied_kv.text import LINE, shown, trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, Observation

Result = ActionChunk | Exception
Serve = Callable[[Sequence[Observation], float], Future[list[Result]]]
Deliver = Callable[[str, str, int, Receipt], None]  # robot, task, round, what became of it

log = logging.getLogger(__name__)

RETRY = 1.0  # s until an engine that failed is tried again
TICK = 1.0  # s between two looks, at most: lines of the log wait for one


@dataclass(frozen=True, eq=False)
class ServedChunk:
    """What an engine made of a request: a chunk that is judged, or the reason for which none.

    queued: s from the request to its dispatch. late: there was no time for one.
    """

    chunk: ActionChunk | None
    fault: str = ''
    queued: float = 0.0
    late: bool = False


class FleetServer(threading.Thread):
    """Serves robots by a dispatcher.

    serve: what each of the dispatcher's engines does with a batch, by its name. deliver: takes
    every receipt, on this thread.
    clock: what `now` is, s, never falling; whoever gives it one of their own calls `step` in place
    of `start`. on_idle: called on this thread whenever no request waits for an engine, or is held.
    on_vanished: called on it with the name of a robot that is gone.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        serve: Mapping[str, Serve],
        deliver: Deliver,
        trace_writer: TraceWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_idle: Callable[[], None] = lambda: None,
        on_vanished: Callable[[str], None] = lambda robot: None,
    ) -> None:
        super().__init__(name='fleet', daemon=True)
        self._clock = clock
        self.dispatcher, self._serve, self._deliver = dispatcher, serve, deliver
        self._trace = trace_writer
        self._on_idle, self._on_vanished = on_idle, on_vanished
        self._forecast = Forecast()
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._observations: dict[str, Observation] = {}  # robot -> the newest of its newest round
        self._restore: dict[str, float] = {}  # engine -> when it is tried again
        self._failures = Throttled(log.warning)
        self._faults = Throttled(log.error)
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ from any thread

    def submit(self, request: Request, observation: Observation) -> None:
        """A robot asks, or asks again: of a repetition only the newer observation counts."""
        self._events.put(partial(self._submit, request, observation))

    def finish(self, robot: str, task: str) -> None:
        """A robot's task is over."""
        self._events.put(partial(self._finish, robot, task))

    def vanish(self, robot: str) -> None:
        """A robot is gone."""
        self._events.put(partial(self._vanish, robot))

    def slack(self, engine: str, now: float) -> float:
        """For how long, s, nobody waits for this engine or is expected to ask it; 0: somebody is.

        An engine is waited for while a batch of its is under way, or a request in no batch yet
        that is not held for others. While one is held, who is expected only fills its batch.
        """
        dispatcher = self.dispatcher
        if dispatcher.engines[engine].in_flight or not self._events.empty():
            return 0.0
        until = dispatcher.held_until if dispatcher.queue else self._forecast.next(now)
        return max(0.0, until - now)

    def stop(self) -> None:
        """Ends the thread. What engines still answer is nobody's."""
        self._events.put(None)
        self.join()
        if self._trace:
            self._trace.close()

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        while self.step(min(TICK, max(0.0, self.wake() - self._clock()))):
            pass

    def step(self, pause: float = 0.0) -> bool:
        """What was said next, if anything was within `pause` s, then what time brings.

        False: it was the end.
        """
        try:
            event = self._events.get(timeout=pause)
        except queue.Empty:
            event = self._nothing
        if event is None:
            return False
        for work in (event, self._watch, self._dispatch):
            try:
                work()
            except Exception as error:  # one robot's fault must not end the others' service
                self._faults(type(error).__name__, f'serving a fleet failed\n{trace(error)}')
                self.counts['faults'] += 1
        if not self.dispatcher.queue or self.dispatcher.held_until > self._clock():
            self._on_idle()
        return True

    def wake(self) -> float:
        """The moment at which time alone brings something, s."""
        return min([self.dispatcher.wake(self._clock()), *self._restore.values()])

    def _nothing(self) -> None:
        """Time alone has passed."""

    def _submit(self, request: Request, observation: Observation) -> None:
        now = self._clock()
        receipt = self.dispatcher.register(request.robot, now)
        if receipt.verdict is not Verdict.REFUSED:
            receipt = self.dispatcher.submit(request, now)
        if receipt.verdict in (Verdict.QUEUED, Verdict.DUPLICATE):
            self._observations[request.robot] = observation
        if receipt.verdict is Verdict.QUEUED:
            self._forecast.asked(request.robot)
            if self._trace:
                self._trace.asked(request)
        if receipt.answer is not None:
            receipt = _receipt(receipt.answer)
        self._reply(request.robot, request.task, request.round, receipt)

    def _reply(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        self.counts[receipt.verdict.value] += 1
        self._deliver(robot, task, round, receipt)

    def _finish(self, robot: str, task: str) -> None:
        self.dispatcher.finish(robot, task)
        self._forecast.asked(robot)

    def _vanish(self, robot: str) -> None:
        self.dispatcher.vanish(robot)
        self._forget(robot)

    def _forget(self, robot: str) -> None:
        self._observations.pop(robot, None)
        self._forecast.forget(robot)
        self.counts['vanished'] += 1
        self._on_vanished(robot)
        if self._trace:
            self._trace.forget(robot)

    def _watch(self) -> None:
        """What time brings: overdue engines, and engines to try again."""
        now = self._clock()
        self._failures.flush()
        self._faults.flush()
        self.counts['overdue'] += len(self.dispatcher.check(now))
        for waiting in self.dispatcher.hopeless():
            answer = _given_up(waiting, now)
            if self.dispatcher.refuse(waiting, answer, now):
                self._reply(answer.robot, answer.task, answer.round, _receipt(answer))
        for engine in [name for name, due in self._restore.items() if due <= now]:
            del self._restore[engine]
            self.dispatcher.restored(engine)

    def _dispatch(self) -> None:
        for dispatch in self.dispatcher.decide(self._clock()):
            frames = [self._observations[waiting.robot] for waiting in dispatch.batch]
            self.counts['batches'] += 1
            self.counts['served'] += len(frames)
            work = self._serve[dispatch.engine](frames, dispatch.overdue)
            work.add_done_callback(
                lambda work, dispatch=dispatch: self._events.put(
                    partial(self._done, dispatch, work)
                )
            )

    def _done(self, dispatch: Dispatch, work: Future[list[Result]]) -> None:
        now = self._clock()
        try:
            results = work.result()
        except Exception as error:  # the engine's, whatever it is: others, or later
            self._failures(
                dispatch.engine, f'{dispatch.engine} failed: {shown(repr(error), LINE)}'
            )
            self.counts['engine errors'] += 1
            self.dispatcher.lost(dispatch.engine, f'failed: {error!r}')
            self._restore[dispatch.engine] = now + RETRY
            return
        asked = [self.dispatcher.request(waiting) for waiting in dispatch.batch]
        answers = [
            _answer(waiting, request, result, dispatch.sent)
            for waiting, request, result in zip(dispatch.batch, asked, results, strict=True)
        ]
        first = self.dispatcher.done(dispatch.engine, dispatch.number, answers, now)
        for waiting, request, answer in zip(dispatch.batch, asked, answers, strict=True):
            if any(answer is one for one in first):
                if self._trace:
                    self._trace.answered(request, answer, answer.chunk.chunk, now - dispatch.sent)
                self._expect(waiting, request, answer, now)
                self._reply(answer.robot, answer.task, answer.round, _receipt(answer))

    def _expect(self, waiting: Waiting, request: Request, answer: Answer, now: float) -> None:
        """When the robot asks again, by what its request said of the execution before."""
        chunk, before = answer.chunk.chunk, request.execution
        if chunk is not None and before is not None:
            ahead, lasts = before.remaining * chunk.dt, answer.execution_horizon * chunk.dt
            self._forecast.answered(answer.robot, waiting.arrived, ahead, lasts, now)

    # ------------------------------------------------------------------ diagnostics

    def values(self) -> dict[str, object]:
        """Counts since the start, for diagnostics; from any thread."""
        batches = self.counts['batches']
        engines = list(self.dispatcher.engines.values())
        return {
            'robots': len(self.dispatcher.ledger.robots),
            'waiting': len(self.dispatcher.queue),
            'batches': batches,
            'mean batch': f'{self.counts["served"] / batches:.2f}' if batches else '',
            'engines alive': f'{sum(engine.alive for engine in engines)} of {len(engines)}',
            **{name: n for name, n in sorted(self.counts.items()) if name != 'batches'},
        }


def _answer(waiting: Waiting, request: Request | None, result: Result, sent: float) -> Answer:
    """The chunk with its execution horizon; of a robot that has moved on nobody reads it."""
    queued, chunk, fault = sent - waiting.arrived, None, ''
    if isinstance(result, Exception):
        fault = f'no chunk could be made: {result}'
    elif request is not None:
        try:
            chunk = with_execution_horizon(result, request.execution_horizon)
        except (TypeError, ValueError) as error:
            fault = f'the horizon policy failed: {error}'
    served = ServedChunk(chunk, fault, queued, isinstance(result, Late))
    return Answer(
        waiting.robot, waiting.task, waiting.round, chunk.execution_horizon if chunk else 0, served
    )


def _given_up(waiting: Waiting, now: float) -> Answer:
    """The answer to a request that took an engine down, again and again."""
    reasons = '; '.join(dict.fromkeys(waiting.lost_batches))
    fault = f'given up after {len(waiting.lost_batches)} batches that were lost with it: {reasons}'
    served = ServedChunk(None, fault, now - waiting.arrived)
    return Answer(waiting.robot, waiting.task, waiting.round, 0, served)


def _receipt(answer: Answer) -> Receipt:
    fault = answer.chunk.fault
    return Receipt(Verdict.REFUSED if fault else Verdict.ANSWERED, fault, answer)
