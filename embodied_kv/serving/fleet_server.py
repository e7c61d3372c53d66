"""The thread that serves a fleet: requests become batches of engines, and chunks become answers.

Only this thread calls the dispatcher; events from other threads are queued. The thread keeps the
newest observation of each robot. An engine is a function from observations to a future of chunks.
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
from embodied_kv.fleet.protocol import Answer, Receipt, Request, Verdict
from embodied_kv.fleet.request_timing import Forecast
from embodied_kv.fleet.schedulers import Waiting
from embodied_kv.fleet.trace import TraceWriter
from embodied_kv.serving.batch import LateError
from embodied_kv.text import LINE, shown, trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, Observation

Result = ActionChunk | Exception
Serve = Callable[[Sequence[Observation], float], Future[list[Result]]]
Deliver = Callable[[str, str, int, Receipt], None]  # robot, task, round, receipt

log = logging.getLogger(__name__)

RETRY = 1.0  # s until an engine that failed is tried again
TICK = 1.0  # s; maximum time between two steps, for which held log lines may wait


@dataclass(frozen=True, eq=False)
class ServedChunk:
    """The result of a request: a chunk with its execution horizon, or the reason for none.

    `queued` is the time from the request to its dispatch, s. `late` means that the time left was
    too short for a chunk.
    """

    chunk: ActionChunk | None
    fault: str = ''
    queued: float = 0.0
    late: bool = False


class FleetServer(threading.Thread):
    """Serves robots with a dispatcher.

    Args:
        dispatcher: The scheduling core.
        serve: The function that serves a batch, by the name of the engine.
        deliver: Receives each receipt, on this thread.
        trace_writer: Records executions; None for no trace.
        clock: Returns the monotonic time, s. With another clock, do not start the thread but
            call `step`.
        on_idle: Called on this thread whenever no request waits, or the waiting ones are held.
        on_vanished: Called on this thread with the name of a robot that was removed.
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
        self._observations: dict[str, Observation] = {}  # robot -> newest one of its newest round
        self._restore: dict[str, float] = {}  # engine -> when it is tried again
        self._failures = Throttled(log.warning)
        self._faults = Throttled(log.error)
        self.counts: Counter[str] = Counter()

    def submit(self, request: Request, observation: Observation) -> None:
        """Queue a request; a repeated request only replaces its observation."""
        self._events.put(partial(self._submit, request, observation))

    def made(self, frame: Observation, result: Result) -> None:
        """Answer one observation of a batch while the engine serves the others.

        The round is recorded as answered before the robot's next request, which may come at once.
        """
        self._events.put(partial(self._made, frame, result))

    def finish(self, robot: str, task: str) -> None:
        self._events.put(partial(self._finish, robot, task))

    def vanish(self, robot: str) -> None:
        self._events.put(partial(self._vanish, robot))

    def idle_time(self, engine: str, now: float) -> float:
        """Return for how long (s) no request waits for this engine or is expected; 0 if one does.

        A request waits while its batch is in flight, and while it is neither in a batch nor held
        for a fuller one. While one is held, expected requests do not count: they fill its batch.
        """
        dispatcher = self.dispatcher
        if dispatcher.engines[engine].in_flight or not self._events.empty():
            return 0.0
        until = dispatcher.held_until if dispatcher.queue else self._forecast.next(now)
        return max(0.0, until - now)

    def stop(self) -> None:
        """End the thread. Later results of engines are dropped."""
        self._events.put(None)
        if self.ident is not None:  # it was started
            self.join()
        if self._trace:
            self._trace.close()

    def run(self) -> None:
        while self.step(min(TICK, max(0.0, self.wake() - self._clock()))):
            pass

    def step(self, pause: float = 0.0) -> bool:
        """Handle the next event within `pause` s, if any, and what is due by time.

        Returns False if the event was that of `stop`.
        """
        works = [self._watch, self._dispatch]
        try:
            event = self._events.get(timeout=pause)
            if event is None:
                return False
            works.insert(0, event)
        except queue.Empty:
            pass
        for work in works:
            try:
                work()
            except Exception as error:  # a fault of one robot must not stop the others' service
                self._faults(type(error).__name__, f'serving a fleet failed\n{trace(error)}')
                self.counts['faults'] += 1
        if not self.dispatcher.queue or self.dispatcher.held_until > self._clock():
            self._on_idle()
        return True

    def wake(self) -> float:
        """Return the next moment, s, at which something is due by time alone."""
        return min([self.dispatcher.wake(self._clock()), *self._restore.values()])

    def _submit(self, request: Request, observation: Observation) -> None:
        receipt = self.dispatcher.submit(request, self._clock())
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
        self._observations.pop(robot, None)
        self._forecast.forget(robot)
        self.counts['vanished'] += 1
        self._on_vanished(robot)
        if self._trace:
            self._trace.forget(robot)

    def _watch(self) -> None:
        """Take back batches of overdue engines, refuse hopeless requests, retry failed engines."""
        now = self._clock()
        self._failures.flush()
        self._faults.flush()
        self.counts['overdue'] += len(self.dispatcher.check(now))
        for waiting in self.dispatcher.hopeless():
            lost = waiting.lost_batches
            fault = f'given up after {len(lost)} lost batches: {"; ".join(dict.fromkeys(lost))}'
            served = ServedChunk(None, fault, now - waiting.arrived)
            answer = Answer(waiting.robot, waiting.task, waiting.round, 0, served)
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
            work.add_done_callback(partial(self._served, dispatch))

    def _served(self, dispatch: Dispatch, work: Future[list[Result]]) -> None:
        self._events.put(partial(self._done, dispatch, work))

    def _done(self, dispatch: Dispatch, work: Future[list[Result]]) -> None:
        now = self._clock()
        try:
            results = work.result()
        except Exception as error:  # of the engine: another one, or a later batch, serves them
            self._failures(
                dispatch.engine, f'engine {dispatch.engine} failed: {shown(repr(error), LINE)}'
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
            if request is not None and any(answer is one for one in first):
                self._answered(waiting, dispatch, request, answer, now)

    def _made(self, frame: Observation, result: Result) -> None:
        found = self.dispatcher.dispatched(frame.robot, frame.sequence)
        if found is None:
            return
        now, (waiting, dispatch) = self._clock(), found
        request = self.dispatcher.request(waiting)
        answer = _answer(waiting, request, result, dispatch.sent)
        if request is not None and self.dispatcher.answered(waiting, dispatch, answer, now):
            self._answered(waiting, dispatch, request, answer, now)

    def _answered(
        self, waiting: Waiting, dispatch: Dispatch, request: Request, answer: Answer, now: float
    ) -> None:
        """Deliver the first answer to a round."""
        chunk, before = answer.chunk.chunk, request.execution
        if self._trace:
            self._trace.answered(request, answer, chunk, now - dispatch.sent)
        if chunk is not None and before is not None:
            ahead, lasts = before.remaining * chunk.dt, answer.execution_horizon * chunk.dt
            self._forecast.answered(answer.robot, waiting.arrived, ahead, lasts, now)
        self._reply(answer.robot, answer.task, answer.round, _receipt(answer))

    def values(self) -> dict[str, object]:
        batches = self.counts['batches']
        engines = list(self.dispatcher.engines.values())
        return {
            'robots': len(self.dispatcher.rounds.robots),
            'waiting': len(self.dispatcher.queue),
            'batches': batches,
            'mean batch': f'{self.counts["served"] / batches:.2f}' if batches else '',
            'engines alive': f'{sum(engine.alive for engine in engines)} of {len(engines)}',
            **{name: n for name, n in sorted(self.counts.items()) if name != 'batches'},
        }


def _answer(waiting: Waiting, request: Request | None, result: Result, sent: float) -> Answer:
    """Return the answer with the chunk's execution horizon; `request` is None if outdated."""
    queued, chunk, fault = sent - waiting.arrived, None, ''
    if isinstance(result, Exception):
        fault = f'no chunk could be made: {result}'
    elif request is not None:
        try:
            chunk = with_execution_horizon(result, request.execution_horizon)
        except (TypeError, ValueError) as error:
            fault = f'the horizon policy failed: {error}'
    served = ServedChunk(chunk, fault, queued, isinstance(result, LateError))
    horizon = chunk.execution_horizon if chunk else None
    return Answer(waiting.robot, waiting.task, waiting.round, horizon or 0, served)


def _receipt(answer: Answer) -> Receipt:
    fault = answer.chunk.fault
    return Receipt(Verdict.REFUSED if fault else Verdict.ANSWERED, fault, answer)
