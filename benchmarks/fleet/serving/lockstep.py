"""The sessions of a policy server and its robots in virtual time.

The sessions, the dispatcher, the scheduler, the engine, its rows and its decode streams are those
of the policy server. Sockets and the encoding of messages are left out: robots call the sessions
in the same process. Only the clock is a schedule, which never waits: a request takes no time, and
a batch takes the seconds that its profile states, whatever it took in reality. So two runs agree,
and neither other load of the machine nor the cost of the robots' world changes a result. Knows
orders and results; does not know the world of the robots.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from benchmarks.fleet.serving.robot import Habits, Player, World
from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.fleet.serving.speech import Seconds, Speech
from benchmarks.fleet.serving.stepped import Stepped
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Verdict
from embodied_kv.serving.batch import TimedObservation, serve_in_time
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.fleet_server import Result
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.sessions import Sessions, Text
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class Order:
    """A fleet to run: a closed one, or one whose tasks arrive.

    profile: the seconds that batches are charged. habits: of the robots. starts: when each robot
    begins, s. tasks: of each robot, one after another, repeated until all robots have done theirs
    once; only the world interprets the numbers. scheduler, pending, max_queue_delay, trace: as of
    a policy server. speech: what language work is charged, s by kind and size. streams: maximum of
    all robots; 0: as many as the engine has. arrivals: of each robot's tasks, s; empty for a
    closed fleet. horizons: by task, where it has another policy than the habits.
    """

    profile: Profile
    habits: Habits
    starts: Sequence[float]
    tasks: Sequence[Sequence[int]]
    scheduler: str = 'kairos'
    pending: bool = False
    max_queue_delay: float = 0.0
    speech: Seconds = field(default_factory=dict)
    streams: int = 0
    arrivals: Sequence[Sequence[float]] = ()
    horizons: Mapping[int, str] = field(default_factory=dict)
    trace: str = ''

    @property
    def scheduling(self) -> SchedulingConfig:
        """Return the scheduling config of the policy server."""
        return SchedulingConfig(
            scheduler=self.scheduler,
            kairos_count_pending_wait=self.pending,
            max_queue_delay=self.max_queue_delay,
            trace=self.trace,
        )


class Lockstep(Sessions):
    """The sessions of a policy server in virtual time.

    charged, computed: s of all batches, by the profile and in reality. latencies: s from each
    round's request to its answer. said: text by stream. speech: from `start` on.
    """

    def __init__(self, local: EngineRunner, schedule: Schedule, order: Order) -> None:
        super().__init__(
            local.engine,
            local.device,
            order.profile,
            kept=1,
            capsule_mib=0,
            scheduling=order.scheduling,
            server=partial(Stepped, clock=lambda: schedule.now),
        )
        self._schedule, self._order, self._wakes = schedule, order, math.inf
        self.charged = self.computed = 0.0
        self._asked: dict[str, float] = {}  # robot -> moment
        self.latencies: list[float] = []
        self.said: defaultdict[int, str] = defaultdict(str)

    @property
    def server(self) -> Stepped:
        return self._server

    def start(self) -> None:
        super().start()
        kv, schedule, speech = self.engine.kv, self._schedule, self._order.speech
        kv.set_limits(streams=self._order.streams or kv.decode_kv.rows)
        slack = self.engine.budget.forecast
        assert slack is not None  # `Sessions.start` has set it
        device, hear = self._device, self.on_deltas
        self.speech = Speech(self.engine, device, schedule, speech, slack, hear)

    def work(self) -> None:
        """Process every request, and everything that is due. Raises RuntimeError for a fault."""
        if (moment := self.server.catch_up()) < self._wakes:
            self._wakes = moment
            self._schedule.at(moment, self._wake)
        self.speech.step()

    def _wake(self) -> None:
        self._wakes = math.inf

    def on_deltas(self, deltas: Sequence[TextDelta]) -> None:
        for delta in deltas:
            if delta.text or delta.reason != 'cancelled':  # else it ended before its first word
                self.said[delta.stream] += delta.text
        super().on_deltas(deltas)

    def texts(self) -> list[str]:
        """Return all texts, finished or not."""
        self._device.call(lambda: self.on_deltas(self.engine.deltas())).result()
        return [text.strip() for text in self.said.values()]

    def ask(
        self, session: str, question: str, max_tokens: int, evict: bool = True
    ) -> Future[Text]:
        """Ask as any sessions do; on return, the stream has begun, or the future has failed."""
        text = super().ask(session, question, max_tokens, evict)
        self._device.call(lambda: None).result()
        return text

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        if receipt.verdict is Verdict.QUEUED:
            self._asked[robot] = self._schedule.now
        elif receipt.verdict is Verdict.ANSWERED and robot in self._asked:
            self.latencies.append(self._schedule.now - self._asked.pop(robot))
        super()._deliver(robot, task, round, receipt)

    def _serve(self, frames: Sequence[TimedObservation], overdue: float) -> Future[list[Result]]:
        """Compute at once; the results are delivered when the charged seconds are over."""
        began = time.perf_counter()
        batch = partial(serve_in_time, self.engine, frames, self._rows)
        results = self._device.call(batch).result()
        self.computed += time.perf_counter() - began
        seconds = self._order.profile.latency(len(frames))
        self.charged += seconds
        promise: Future[list[Result]] = Future()
        moment = max(self._schedule.now, self.speech.free) + seconds
        self._schedule.at(moment, partial(promise.set_result, results))
        return promise


def run(
    local: EngineRunner,
    order: Order,
    world: World,
    on_end: Callable[[], object] = lambda: None,
) -> dict[str, object]:
    """Return the outcomes of the tasks, and what the server did, as plain values.

    local: an engine whose batches hold as many robots as those of the order's profile. on_end:
    called when a task is over for the first time. Raises RuntimeError for any fault.
    """
    schedule = Schedule()
    sessions = Lockstep(local, schedule, order)
    local.deltas.listen(sessions.on_deltas)
    sessions.start()
    try:
        players = [
            Player(
                number,
                sessions,
                world,
                order.habits,
                tasks,
                start,
                schedule,
                on_end,
                order.arrivals[number] if order.arrivals else (),
                order.horizons,
            )
            for number, (tasks, start) in enumerate(zip(order.tasks, order.starts, strict=True))
        ]

        def settle() -> None:
            sessions.work()
            for player in players:
                if player.is_answered:
                    player.wake()

        schedule.run(lambda: not all(player.is_done for player in players), settle)
        counts = sessions.server.counts
        return dict(
            tasks=[task for player in players for task in player.finished],
            batches=counts['batches'],
            served=counts['served'],
            charged=sessions.charged,
            computed=sessions.computed,
            span=schedule.now,
            decisions=sessions.server.scheduler.decisions,
            latencies=sessions.latencies,
            said=sessions.texts(),
            spoken=sessions.speech.costs.spent,
        )
    finally:
        local.deltas.unlisten(sessions.on_deltas)
        sessions.stop()
