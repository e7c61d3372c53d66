"""The process that a kill ends: the engine of a fleet, its server and its language streams.

Knows the parts that are on, and how their work reaches the one device. Does not know tables or
missions. The classes of the nodes do the work, except for those of ROS.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from unittest.mock import patch

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.fleet.serving.stepped import Stepped
from benchmarks.whole.costs import Costs, Meter, TableCosts
from benchmarks.whole.device import Device
from benchmarks.whole.settings import Settings
from benchmarks.whole.voices import Apart, Voices
from benchmarks.whole.ways import Parts
from embodied_kv.control.execution_horizon import Policy as Horizon
from embodied_kv.control.execution_horizon import parse
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine.shapes import doubling
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Request, Verdict
from embodied_kv.fleet.schedulers import scheduler
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import KeptRows, profile_of, serve
from embodied_kv.serving.fleet_server import Result
from embodied_kv.serving.stream_quota import StreamQuota
from embodied_kv.types import Observation

HERE = 'here'
NO_TOKEN = -1


class TirelessDispatcher(Dispatcher):
    """A dispatcher that waits for an overloaded engine, however late its answer is."""

    def check(self, now: float) -> list[str]:
        return []


def engine_config(settings: Settings, parts: Parts) -> EngineConfig:
    """Return the config of the engine; only the compression depends on the parts."""
    s = settings
    ratio, after = (s.keep_ratio, s.compression_after_tokens) if parts.compression else (1.0, 0)
    return EngineConfig(
        max_batch_robots=s.batch,
        rows=s.rows,
        reserved_rows=s.batch + s.robots,
        streams=s.streams,
        decode_tokens=s.decode_tokens,
        euler_steps=s.euler_steps,
        min_euler_steps=min(4, s.euler_steps),
        deadline_margin_ms=s.deadline_margin_ms,
        decode_batch_multiple=s.decode_batch_multiple,
        language_keep_ratio=ratio,
        compression_after_tokens=after,
        compressed_rows=s.compressed_rows,
        kv_budget_mib=s.kv_budget_mib,
    )


class Process:
    """The process of a fleet.

    costs: of its units of work. latencies: s from each round's request to its answer. stalls: s
    that an arm stood still before the chunk of each round but the first of a step. peak: maximum
    bytes of KV in use.
    """

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        parts: Parts,
        costs: Costs,
        schedule: Schedule,
        robots: Sequence[str],
    ) -> None:
        self._schedule, self._settings, self.parts = schedule, settings, parts
        self.costs, self.meter = costs, Meter()
        with patch.object(policy.tokenizer, 'eos', NO_TOKEN):  # `Voices` ends the answers
            self.engine = Engine(policy, engine_config(settings, parts), policy.config.action_dt)
        self._latency = TableCosts(costs.policy, self.meter, self.engine)
        self.engine.latency = self.engine.budget.latency = self._latency
        self.kept, self.shares = KeptRows(self.engine), StreamQuota(self.engine)
        for robot in robots:
            self.shares.join(robot)
        order, horizon = settings.kairos if parts.kairos else settings.fifo
        self.horizon: Horizon = parse(horizon)
        self.server = Stepped(
            TirelessDispatcher(scheduler(order), [EngineState(HERE, self._profile(policy))]),
            {HERE: self._serve},
            self._deliver,
            clock=lambda: schedule.now,
        )
        self.engine.budget.forecast = self._slack
        self.voices = (Voices if parts.shared else Apart)(
            self.engine, self.shares, self.kept, settings
        )
        self.device = Device(
            schedule,
            self.meter,
            lambda kind, now: self.engine.budget.admits(now, kind),
            self.voices.unit,
            self.voices.robots,
            self._latency.begin,
            self._on_unit,
            self._latency.note,
        )
        self._waits: dict[str, Callable[[object], object]] = {}  # by robot
        self._asked: dict[str, tuple[tuple[str, int], float]] = {}  # round, since when
        self._rounds: Counter[str] = Counter()
        self._wakes = math.inf
        self.latencies: list[float] = []
        self.stalls: list[float] = []
        self.horizons: list[int] = []
        self.peak = 0
        self.fingerprint = fingerprint(self.engine) if parts.capsules else ''

    def settle(self) -> None:
        """Start everything that follows from the last event of the schedule."""
        if self.device.is_gone:
            return
        if (moment := self.server.catch_up()) < self._wakes:
            self._wakes = moment
            self._schedule.at(moment, self._wake)
        self.device.next()

    def kill(self) -> None:
        """End the process: nothing of it continues."""
        self.device.is_gone = True

    def _profile(self, policy: Policy) -> Profile:
        chunk, steps = self.costs.policy.chunk, self._settings.euler_steps
        sizes = doubling(self._settings.batch)
        return profile_of(policy.config, {size: chunk(size, steps) for size in sizes})

    def _wake(self) -> None:
        self._wakes = math.inf

    def _slack(self, now: float) -> float:
        return self.server.idle_time(HERE, now)

    # ------------------------------------------------------------------ chunks

    def ask(self, request: Request, seen: Observation, resume: Callable[[object], object]) -> None:
        """Request a chunk.

        resume: called with the chunk, or with None when the request is to be repeated.
        """
        now, robot, round = self._schedule.now, request.robot, (request.task, request.round)
        self._waits[robot] = resume
        if robot not in self._asked or self._asked[robot][0] != round:
            self._asked[robot] = round, now
        self.server.submit(request, seen)
        self._schedule.at(now + self._settings.retry_interval, partial(self._again, robot, resume))

    def _again(self, robot: str, resume: Callable[[object], object]) -> None:
        """Let the robot repeat its request.

        If the answer has come by then, the repeated request receives it.
        """
        if self._waits.get(robot) is resume:
            del self._waits[robot]
            resume(None)

    def leave(self, robot: str) -> None:
        """Remove a robot, which requests no more."""
        self._waits.pop(robot, None)
        self._asked.pop(robot, None)
        self.kept.drop(robot)
        self.server.vanish(robot)

    def _serve(self, frames: Sequence[Observation], overdue: float) -> Future[list[Result]]:
        work = partial(serve, self.engine, frames, math.inf, self.kept)
        made = self.device.serve(work)
        made.add_done_callback(lambda _: self._prompt(frames))
        return made

    def _prompt(self, frames: Sequence[Observation]) -> None:
        """Ask the contract's prompts on frames, every so many rounds."""
        for frame in frames:
            self._rounds[frame.robot] += 1
            if self._rounds[frame.robot] % self._settings.prompt_interval_frames == 0:
                self.voices.prompt(frame)

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        if receipt.verdict is Verdict.REFUSED:
            raise RuntimeError(f'round {round} of {robot} is refused: {receipt.message}')
        asked, since = self._asked.get(robot, (None, 0.0))
        is_heard = asked == (task, round) and robot in self._waits
        if receipt.verdict is Verdict.ANSWERED and is_heard:
            del self._asked[robot]
            self.latencies.append(self._schedule.now - since)
            chunk = receipt.answer.chunk.chunk
            self.horizons.append(chunk.execution_horizon)
            self._waits.pop(robot)(chunk)

    def _on_unit(self) -> None:
        self.peak = max(self.peak, self.engine.kv.budget.bytes_used)
        self.voices.hear()
