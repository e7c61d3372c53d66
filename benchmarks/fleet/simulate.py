"""A discrete-event simulation of a fleet around the dispatcher that serves a real one.

Knows jobs, which have the execution horizon H of every round, profiles and links. Simplifications:
a generation takes exactly the time of its profile; a round executes all of its H actions,
including those that overlap with the round before (as the paper's 0.3 to 1.6 s a phase do). Times
are seconds from the simulation's start.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.fleet.workload import Job
from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import Dispatch, EngineState, Link
from embodied_kv.fleet.protocol import Answer, LastExecution, Request
from embodied_kv.fleet.schedulers import Scheduler

NEAR = Link(0.0, 1e12, 1e12)  # no network at all


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a simulation; arrays follow the jobs.

    latency: from a task's first request to its last action, s [jobs]. waited: time that a robot
    stood still between its first and its last action, s [jobs]. rounds, batches: served in all.
    cloud: share of rounds behind a link.
    """

    latency: np.ndarray
    waited: np.ndarray
    rounds: int
    batches: int
    cloud: float

    def summary(self) -> dict[str, float]:
        """Return P25, average and P95 of the latency, s."""
        p25, p95 = np.percentile(self.latency, (25, 95))
        return dict(p25=float(p25), average=float(self.latency.mean()), p95=float(p95))


@dataclass(slots=True, eq=False)
class _Robot:
    name: str
    offset: float  # of its clock
    number: int = -1  # of its job
    round: int = 0
    first: float = 0.0  # moment of the first request
    begun: float = 0.0  # of the first action
    start: float = 0.0  # of the present execution
    end: float = 0.0
    still: float = 0.0  # s without an action


@dataclass(eq=False)
class Simulation:
    """Jobs served by a dispatcher of its own; call `arrive` or `fleet`, once.

    lead: s before the end of the present chunk at which the next one is requested. By default a
    generation of the first engine alone and the robot's own network, as in a trace that was
    recorded without load (sections 3.2.1 and 5.1); 0 is synchronous inference. offsets: of robots'
    clocks, s. deaths: moments at which engines fail.
    """

    jobs: Sequence[Job]
    scheduler: Scheduler
    engines: Sequence[EngineState]
    wifi: Link = NEAR
    lead: float | None = None
    offsets: Sequence[float] = (0.0,)
    deaths: Mapping[str, float] = field(default_factory=dict)

    def arrive(self, moments: Sequence[float]) -> Result:
        """Simulate each job on a robot of its own, from its moment on."""
        for number, moment in enumerate(moments):
            self._at(float(moment), self._begin, self._robot(number), iter((number,)))
        return self._run()

    def fleet(self, robots: int) -> Result:
        """Simulate `robots` robots that take one job after the other until none is left."""
        numbers = iter(range(len(self.jobs)))
        for i in range(min(robots, len(self.jobs))):
            self._at(0.0, self._begin, self._robot(i), numbers)
        return self._run()

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.scheduler, self.engines)
        self._heap, self._tie, self._now, self._woken = [], count(), 0.0, float('inf')
        self._robots: dict[str, tuple[_Robot, object]] = {}
        self._latency = np.zeros(len(self.jobs))
        self._waited = np.zeros(len(self.jobs))
        self._rounds = self._batches = self._cloud = 0
        self._timed = bool(self.deaths) or any(engine.link for engine in self.engines)
        for engine, moment in self.deaths.items():
            self._at(moment, self._die, engine)

    def _robot(self, number: int) -> _Robot:
        return _Robot(f'robot{number}', self.offsets[number % len(self.offsets)])

    def _at(self, moment: float, act: Callable, *args: object) -> None:
        heapq.heappush(self._heap, (moment, next(self._tie), act, args))

    def _run(self) -> Result:
        while self._heap:
            self._now, _, act, args = heapq.heappop(self._heap)
            act(*args)
        return Result(
            self._latency,
            self._waited,
            self._rounds,
            self._batches,
            self._cloud / max(self._rounds, 1),
        )

    def _begin(self, robot: _Robot, numbers: object) -> None:
        number = next(numbers, None)
        if number is None:
            self.dispatcher.vanish(robot.name)
            return
        robot.number, robot.round, robot.first, robot.still = number, 0, self._now, 0.0
        self._robots[robot.name] = robot, numbers
        self._ask(robot)

    def _ask(self, robot: _Robot) -> None:
        job, local = self.jobs[robot.number], self._now + robot.offset
        done = None
        if robot.round:
            left = max(round((robot.end - self._now) / job.period), 0)
            done = LastExecution(
                robot.round - 1, robot.start + robot.offset, robot.end + robot.offset, left
            )
        request = Request(
            robot=robot.name,
            task=f'task{robot.number}',
            round=robot.round,
            stamp=local,
            execution_horizon=Static(job.horizons[robot.round]),
            observation_bytes=job.observation_bytes,
            execution=done,
        )
        self._at(self._now + self.wifi.upload_time(job.observation_bytes), self._submit, request)

    def _submit(self, request: Request) -> None:
        self.dispatcher.submit(request, self._now)
        self._decide()

    def _decide(self) -> None:
        for dispatch in self.dispatcher.decide(self._now):
            self._serve(dispatch)
        if self._timed:
            wake = self.dispatcher.wake(self._now)
            if wake < self._woken:
                self._woken = wake
                self._at(wake, self._wake)

    def _wake(self) -> None:
        self._woken = float('inf')
        self.dispatcher.check(self._now)
        self._decide()

    def _serve(self, dispatch: Dispatch) -> None:
        engine = self.dispatcher.engines[dispatch.engine]
        answers = [
            Answer(r.robot, r.task, r.round, self.dispatcher.request(r).execution_horizon.actions)
            for r in dispatch.batch
        ]
        moment = engine.free_at
        if engine.link:
            moment += engine.link.download_time(len(answers) * engine.profile.chunk_bytes)
        self._batches += 1
        self._rounds += len(answers)
        self._cloud += len(answers) if engine.link else 0
        self._at(moment, self._done, dispatch, answers)

    def _done(self, dispatch: Dispatch, answers: list[Answer]) -> None:
        if self.deaths.get(dispatch.engine, float('inf')) <= self._now:
            return
        for answer in self.dispatcher.done(dispatch.engine, dispatch.number, answers, self._now):
            robot, _ = self._robots[answer.robot]
            size = self.jobs[robot.number].chunk_bytes
            self._at(self._now + self.wifi.download_time(size), self._execute, robot, answer)
        self._decide()

    def _execute(self, robot: _Robot, answer: Answer) -> None:
        job = self.jobs[robot.number]
        if robot.round == 0:
            robot.begun = robot.end = self._now
        start = max(self._now, robot.end)
        robot.still += start - robot.end
        robot.start, robot.end = start, start + answer.execution_horizon * job.period
        robot.round += 1
        if robot.round < len(job.horizons):
            self._at(max(self._now, robot.end - self._lead(job)), self._ask, robot)
        else:
            self._at(robot.end, self._finish, robot)

    def _finish(self, robot: _Robot) -> None:
        self._latency[robot.number] = self._now - robot.first
        self._waited[robot.number] = robot.still
        self.dispatcher.finish(robot.name, f'task{robot.number}')
        self._begin(robot, self._robots[robot.name][1])

    def _lead(self, job: Job) -> float:
        if self.lead is not None:
            return self.lead
        wifi, generation = self.wifi, self.engines[0].profile.latency(1)
        answer = wifi.download_time(job.chunk_bytes)
        return wifi.upload_time(job.observation_bytes) + generation + answer

    def _die(self, engine: str) -> None:
        self.dispatcher.lost(engine)
        self._decide()
