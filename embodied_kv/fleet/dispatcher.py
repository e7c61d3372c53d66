"""The scheduling core of a fleet's server: requests become batches, and results become answers.

The dispatcher connects the round table, a scheduler, engines and placement. The caller passes
`now`, s on the server's monotonic clock. It is not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from embodied_kv.fleet.engines import Dispatch, EngineState, place
from embodied_kv.fleet.protocol import Answer, Receipt, Request, Verdict
from embodied_kv.fleet.rounds import RoundTable
from embodied_kv.fleet.schedulers import Scheduler, Waiting, skip

TRIES = 3  # batches that may be lost with a request before it is given up
REMEMBERED = 256  # batches that were taken back and whose late answer is still accepted


class Dispatcher:
    """Decides which engine serves which requests.

    The cycle: `submit` each request; send the batches of `decide` to the engines; pass their
    results to `done` and deliver the answers that it returns; call `check` and `decide` at
    `wake(now)`; `refuse` the requests of `hopeless`.

    Args:
        scheduler: The order of the requests.
        engines: The engines, with different names.
        max_queue_delay: Maximum time (s) for which a request is held for a fuller batch. It is
            not held if enough requests wait to fill a batch, or all robots wait.

    `held_until` is the end of this time as of the last decision; until then the engines are free
    for other work.
    """

    def __init__(
        self, scheduler: Scheduler, engines: Sequence[EngineState], max_queue_delay: float = 0.0
    ) -> None:
        self.scheduler = scheduler
        self.max_queue_delay, self.held_until = max_queue_delay, 0.0
        self.rounds = RoundTable()
        self.engines = {engine.name: engine for engine in engines}
        if not engines or len(self.engines) != len(engines):
            raise ValueError('engines must have at least one entry and different names')
        self.queue: dict[str, Waiting] = {}  # by robot
        self._hopeless: list[Waiting] = []
        self._taken: deque[Dispatch] = deque(maxlen=REMEMBERED)
        self._numbers = 0

    def submit(self, request: Request, now: float) -> Receipt:
        """Queue a request and return its outcome. A repeated request has no effect."""
        receipt = self.rounds.submit(request, now)
        if receipt.verdict is Verdict.QUEUED:
            task = self.rounds.robots[request.robot].task
            assert task and task.waiting
            self.queue[request.robot] = task.waiting
        return receipt

    def decide(self, now: float) -> list[Dispatch]:
        """Return batches for the engines that are open, and count the requests left out.

        A request with which a batch was lost may have caused the loss. It is sent alone when its
        turn comes, so that no other request is lost with it.
        """
        self.held_until = self._held_until()
        if not self.queue or self.held_until > now:
            return []
        if not any(engine.open(now) for engine in self.engines.values()):
            return []
        waiting = list(self.queue.values())
        order = self.scheduler.order(waiting, now)
        engines = list(self.engines.values())
        alone = place(order[:1], engines, now) if order[0].lost_batches else []
        unsuspected = [request for request in order if not request.lost_batches]
        placed = alone or place(unsuspected, engines, now)
        skip(waiting, [request for _, batch in placed for request in batch])
        sent = [self._send(engine, batch, now) for engine, batch in placed]
        return sent + self.decide(now) if alone else sent

    def done(
        self, engine: str, number: int, answers: Sequence[Answer], now: float
    ) -> list[Answer]:
        """Record the answers of an engine to a batch, in its order; return those to deliver.

        An answer is dropped if another engine answered the round first, or if the robot has moved
        on or vanished. A late answer to a batch that was taken back counts if it is the first.
        Raises ValueError if the answers do not match the batch; then all of it waits again.
        """
        in_flight = self.engines[engine].done(number, now)
        dispatch = in_flight or self._late(engine, number)
        if dispatch is None:
            return []
        asked = [(r.robot, r.task, r.round) for r in dispatch.batch]
        given = [(a.robot, a.task, a.round) for a in answers]
        if given != asked:
            if in_flight:
                self._requeue(in_flight, f'{engine} answered another batch')
            raise ValueError(
                f'answers of {engine} must match its batch {asked[:3]} (got {given[:3]})'
            )
        first = []
        for request, answer in zip(dispatch.batch, answers, strict=True):
            if self.answered(request, dispatch, answer, now):
                first.append(answer)
        return first

    def answered(self, waiting: Waiting, dispatch: Dispatch, answer: Answer, now: float) -> bool:
        """Record the answer to one request of a batch; return whether it is the first one."""
        if not self.rounds.answer(waiting, answer, dispatch.sent, now):
            return False
        if self.queue.get(waiting.robot) is waiting:  # it had been taken back
            del self.queue[waiting.robot]
        return True

    def dispatched(self, robot: str, round: int) -> tuple[Waiting, Dispatch] | None:
        """Return the request of a robot's round and its batch; None if the robot has moved on."""
        in_flight = (d for engine in self.engines.values() for d in engine.in_flight.values())
        for dispatch in (*in_flight, *self._taken):
            for waiting in dispatch.batch:
                if (waiting.robot, waiting.round) == (robot, round) and self.rounds.find(waiting):
                    return waiting, dispatch
        return None

    def request(self, waiting: Waiting) -> Request | None:
        """Return the request itself; None if the robot has moved on or vanished."""
        task = self.rounds.find(waiting)
        return task.request if task else None

    def lost(self, engine: str, why: str = 'died') -> None:
        """Queue the batches of a failed engine again."""
        for dispatch in self.engines[engine].lose():
            self._taken.append(dispatch)
            self._requeue(dispatch, f'{engine} {why}')

    def hopeless(self) -> list[Waiting]:
        """Return, once, the requests with which TRIES batches were lost; they no longer wait."""
        found, self._hopeless = self._hopeless, []
        return [request for request in found if self.rounds.find(request)]

    def refuse(self, request: Waiting, answer: Answer, now: float) -> bool:
        """End a round with an answer without a chunk; return whether it is the first answer."""
        return self.rounds.answer(request, answer, now, now)

    def restored(self, engine: str) -> None:
        """Mark an engine as alive, as any answer from it does."""
        self.engines[engine].alive = True

    def check(self, now: float) -> list[str]:
        """Take back the batches of engines with an overdue answer; return the engines' names."""
        late = [
            name
            for name, engine in self.engines.items()
            if any(dispatch.overdue <= now for dispatch in engine.in_flight.values())
        ]
        for name in late:
            self.lost(name, 'did not answer in time')
        return late

    def wake(self, now: float) -> float:
        """Return the next moment at which an engine opens or an answer becomes overdue."""
        moments = [float('inf'), self.held_until]
        for engine in self.engines.values():
            moments += [dispatch.overdue for dispatch in engine.in_flight.values()]
            if self.queue and engine.alive and engine.link and engine.in_flight:
                moments.append(engine.opens())
        return min(moment for moment in moments if moment > now)

    def finish(self, robot: str, task: str) -> None:
        self.rounds.finish(robot, task)
        self._forget(robot)

    def vanish(self, robot: str) -> None:
        self.rounds.vanish(robot)
        self._forget(robot)

    def _held_until(self) -> float:
        """Return until when the queue is held; 0 if it is not."""
        full = max(engine.profile.saturation for engine in self.engines.values())
        if not 0 < len(self.queue) < min(full, len(self.rounds.robots)):
            return 0.0
        return min(request.arrived for request in self.queue.values()) + self.max_queue_delay

    def _send(self, engine: EngineState, batch: list[Waiting], now: float) -> Dispatch:
        self._numbers += 1
        for request in batch:
            del self.queue[request.robot]
            task = self.rounds.find(request)
            assert task  # `_forget` removes a request whose robot has moved on
            task.is_dispatched = True
        self.scheduler.sent(batch, now)
        return engine.send(self._numbers, batch, now)

    def _requeue(self, dispatch: Dispatch, why: str) -> None:
        for request in dispatch.batch:
            task = self.rounds.find(request)
            if task and task.is_dispatched:
                request.lost_batches += (why,)
                if len(request.lost_batches) < TRIES:
                    task.is_dispatched = False
                    self.queue[request.robot] = request
                else:
                    self._hopeless.append(request)

    def _late(self, engine: str, number: int) -> Dispatch | None:
        for dispatch in self._taken:
            if (dispatch.engine, dispatch.number) == (engine, number):
                self._taken.remove(dispatch)
                return dispatch
        return None

    def _forget(self, robot: str) -> None:
        waiting = self.queue.get(robot)
        if waiting and self.rounds.find(waiting) is None:
            del self.queue[robot]
