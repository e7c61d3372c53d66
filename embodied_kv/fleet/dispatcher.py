"""The server of a fleet without its transport: requests in, batches out, answers back.

Knows the ledger, a scheduler, engines and placement, and wires them. Does not know ROS, tensors
or a clock: every call is told `now`, s on the server's monotonic clock. The simulator and the
node drive the same dispatcher. Not thread-safe: one thread calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from embodied_kv.fleet.engines import Dispatch, EngineState
from embodied_kv.fleet.ledger import Ledger, Phase
from embodied_kv.fleet.placement import place
from embodied_kv.fleet.protocol import Answer, LastExecution, Receipt, Request, Verdict
from embodied_kv.fleet.scheduler import Scheduler, Waiting, skip

TRIES = 3  # batches that may be lost with a request before it is given up
REMEMBERED = 256  # batches taken back whose late answer is still of use


class Dispatcher:
    """Serves a fleet.

    max_queue_delay: s that a request is held at the most for a fuller batch, unless as many wait
    as a batch takes, or as there are robots. held_until: when that ends, s, as of the last
    decision; the engines are free for other work until then.

    The cycle: `submit` what robots send; send what `decide` returns to the engines; tell `done`
    what they answer and deliver what it returns; call `check` and `decide` at `wake(now)`;
    `refuse` what is `hopeless`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Sequence[EngineState],
        max_queue_delay: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.max_queue_delay, self.held_until = max_queue_delay, 0.0
        self.ledger = Ledger()
        self.engines = {engine.name: engine for engine in engines}
        if not engines or len(self.engines) != len(engines):
            raise ValueError('a dispatcher needs engines, each with a name of its own')
        self.queue: dict[str, Waiting] = {}  # by robot
        self._hopeless: list[Waiting] = []
        self._taken: deque[Dispatch] = deque(maxlen=REMEMBERED)
        self._numbers = 0

    def register(self, robot: str, now: float) -> Receipt:
        return self.ledger.register(robot, now)

    def submit(self, request: Request, now: float) -> Receipt:
        """A robot's request; its verdict says what became of it. Repeating it is harmless."""
        receipt = self.ledger.submit(request, now)
        if receipt.verdict is Verdict.QUEUED:
            task = self.ledger.robots[request.robot].task
            assert task and task.waiting
            self.queue[request.robot] = task.waiting
        return receipt

    def decide(self, now: float) -> list[Dispatch]:
        """Batches for the engines that are open: order, placement, and who was skipped.

        A request that a batch was lost with may be what killed the engine: when its turn comes it
        goes alone, so that it takes no other one with it.
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
        """An engine answered a batch, in the batch's order: the answers to deliver.

        Left out are rounds that another engine answered first, or whose robot has moved on or
        vanished. A late answer to a batch that was taken back counts if it is the first. Raises
        ValueError for answers that are not the batch's; none counts, and all of it waits again.
        """
        in_flight = self.engines[engine].done(number, now)
        dispatch = in_flight or self._late(engine, number)
        if dispatch is None:
            return []
        asked = [(r.robot, r.task, r.round) for r in dispatch.batch]
        told = [(a.robot, a.task, a.round) for a in answers]
        if told != asked:
            if in_flight:
                self._requeue(in_flight, f'{engine} answered something else')
            raise ValueError(f'{engine} answered {told[:3]} to {asked[:3]}: not its batch')
        first = []
        for request, answer in zip(dispatch.batch, answers, strict=True):
            if self.ledger.answer(request, answer, dispatch.sent, now):
                first.append(answer)
                if self.queue.get(request.robot) is request:  # it had been taken back
                    del self.queue[request.robot]
        return first

    def request(self, waiting: Waiting) -> Request | None:
        """What the robot sent; None where it has moved on or vanished: nobody reads an answer."""
        task = self.ledger.find(waiting)
        return task.request if task else None

    def lost(self, engine: str, why: str = 'died') -> None:
        """An engine died: its work waits for another one."""
        for dispatch in self.engines[engine].lose():
            self._taken.append(dispatch)
            self._requeue(dispatch, f'{engine} {why}')

    def hopeless(self) -> list[Waiting]:
        """Requests with which so many batches were lost that they wait no more, each once."""
        found, self._hopeless = self._hopeless, []
        return [request for request in found if self.ledger.find(request)]

    def refuse(self, request: Waiting, answer: Answer, now: float) -> bool:
        """The round is over with an answer that has no chunk: whether it was the first."""
        return self.ledger.answer(request, answer, now, now)

    def restored(self, engine: str) -> None:
        """It may be served again. An answer of its own says so too."""
        self.engines[engine].alive = True

    def check(self, now: float) -> list[str]:
        """Takes the work of engines that owe an overdue answer: their names."""
        late = [
            name
            for name, engine in self.engines.items()
            if any(dispatch.overdue <= now for dispatch in engine.in_flight.values())
        ]
        for name in late:
            self.lost(name, 'did not answer in time')
        return late

    def wake(self, now: float) -> float:
        """When next time alone changes something: an engine opens, or an answer is overdue."""
        moments = [float('inf'), self.held_until]
        for engine in self.engines.values():
            moments += [dispatch.overdue for dispatch in engine.in_flight.values()]
            if self.queue and engine.alive and engine.link and engine.in_flight:
                moments.append(engine.opens())
        return min(moment for moment in moments if moment > now)

    def executed(self, robot: str, task: str, done: LastExecution, now: float) -> None:
        """A robot tells what it executed without asking for more."""
        self.ledger.executed(robot, task, done, now)

    def finish(self, robot: str, task: str) -> None:
        """A robot's task is over."""
        self.ledger.finish(robot, task)
        self._forget(robot)

    def vanish(self, robot: str) -> None:
        """A robot is gone: nothing more is generated for it."""
        self.ledger.vanish(robot)
        self._forget(robot)

    def _held_until(self) -> float:
        """Until when all that waits is held; 0: it is not."""
        full = max(engine.profile.saturation for engine in self.engines.values())
        if not 0 < len(self.queue) < min(full, len(self.ledger.robots)):
            return 0.0
        return min(request.arrived for request in self.queue.values()) + self.max_queue_delay

    def _send(self, engine: EngineState, batch: list[Waiting], now: float) -> Dispatch:
        self._numbers += 1
        for request in batch:
            del self.queue[request.robot]
            task = self.ledger.find(request)
            assert task  # `_forget` removes a request whose robot has moved on
            task.phase = Phase.DISPATCHED
        self.scheduler.sent(batch, now)
        return engine.send(self._numbers, batch, now)

    def _requeue(self, dispatch: Dispatch, why: str) -> None:
        for request in dispatch.batch:
            task = self.ledger.find(request)
            if task and task.phase is Phase.DISPATCHED:
                request.lost_batches += (why,)
                if len(request.lost_batches) < TRIES:
                    task.phase = Phase.SUBMITTED
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
        if waiting and self.ledger.find(waiting) is None:
            del self.queue[robot]
