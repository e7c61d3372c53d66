"""The rounds of each robot on the server: requested, answered, executed, and how long it waited.

A round is submitted, dispatched, answered and executed; if an engine loses it, it is submitted
again. Invariants:

- a robot has one task, and the task has one round; a newer one replaces it, an older one is late
- a round is answered at most once; a repeated request receives the same answer
- a request changes the rounds of its own robot only
- nothing is kept of a robot that vanished
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from embodied_kv.fleet.protocol import Answer, LastExecution, Receipt, Request, Verdict
from embodied_kv.fleet.schedulers import Waiting

MOST_ROBOTS = 4096
OLD_TASKS = 16  # finished tasks of a robot by which its late requests are recognised
DIGITS = 6  # of a duration, s: rounding by a clock's offset must not change a decision
KEPT = 16  # rounds that may still be incomplete; older ones no longer count
UNKNOWN = 1.0  # s; the estimate of an execution before any robot has executed anything


@dataclass(slots=True)
class _Round:
    generation: tuple[float, float] | None = None
    execution: tuple[float, float] | None = None
    received: float = 0.0  # when the execution was reported, s on the server's clock
    settled: bool = False


class WaitTime:
    """The waits of one task for compute, updated in O(1) for each report.

    W_j, between rounds j and j + 1, is measured on the side that dominates round j:

        |G_j| >= |E_j|:  W_j = G_{j+1}.start - G_j.end     (server's clock)
        else:            W_j = E_{j+1}.start - E_j.end     (robot's clock)

    and at least 0. The server measures a generation G (from dispatch to answer, including the
    engine's network), the robot an execution E (its first and last action). Each difference is
    taken within one clock, so that an offset between both has no effect. The second difference is
    limited to what the server measured between its answer to round j and the report of execution
    j + 1, less |E_j|, so that no robot can claim a longer wait than it had.

    Reports may be repeated, late and in any order: the first of a kind counts for each round, and
    W_j counts once its terms are known. A round that is `KEPT` behind the newest, or that has no
    answer, never counts. Source: Kairos, section 3.2.1 and equation 1.
    """

    def __init__(self) -> None:
        self.total = 0.0  # s
        self.generation = 0.0  # s of generation so far
        self.execution: float | None = None  # s, of the newest executed round
        self._rounds: dict[int, _Round] = {}
        self._newest = self._newest_execution = -1

    def generated(self, number: int, start: float, end: float) -> None:
        record = self._record(number)
        if record is None or record.generation:
            return
        record.generation = start, end
        self.generation += end - start
        self._settle(number - 1)
        self._settle(number)

    def executed(self, number: int, start: float, end: float, received: float) -> bool:
        """Record a reported execution and return whether it is new.

        Args:
            number: The round.
            start: Start of its first action, s on the robot's clock.
            end: End of its last action, which may lie in the future, s on the robot's clock.
            received: Moment of the report, s on the server's clock.
        """
        record = self._record(number)
        if record is None or record.execution:
            return False
        record.execution, record.received = (start, end), received
        if number > self._newest_execution:
            self._newest_execution, self.execution = number, _seconds((start, end))
        self._settle(number - 1)
        self._settle(number)
        return True

    def due(self, number: int, ends: float) -> float:
        """Return when the wait between a round and the next one begins, s on the server's clock.

        The wait so far of a pending round is the time since then; it never exceeds W_j.

        Args:
            number: The round; infinity is returned if its generation or execution is unknown.
            ends: Estimated end of its execution; the earliest possible end is a lower bound.
        """
        here = self._rounds.get(number)
        if not here or not here.generation or not here.execution:
            return math.inf
        answered, execution = here.generation[1], _seconds(here.execution)
        if _seconds(here.generation) >= execution:
            return answered
        return max(ends, answered + execution)

    def _record(self, number: int) -> _Round | None:
        if number <= self._newest - KEPT or number < 0:
            return None
        if number > self._newest:
            self._newest = number
            for old in [old for old in self._rounds if old <= number - KEPT]:
                del self._rounds[old]
        return self._rounds.setdefault(number, _Round())

    def _settle(self, number: int) -> None:
        here, after = self._rounds.get(number), self._rounds.get(number + 1)
        if not here or not after or here.settled or not here.generation or not here.execution:
            return
        generation, execution = _seconds(here.generation), _seconds(here.execution)
        if generation >= execution:
            if not after.generation:
                return
            wait = after.generation[0] - here.generation[1]
        else:
            if not after.execution:
                return
            wait = after.execution[0] - here.execution[1]
            wait = min(wait, after.received - here.generation[1] - execution)
        here.settled = True
        self.total += max(wait, 0.0)


def _seconds(interval: tuple[float, float]) -> float:
    return round(interval[1] - interval[0], DIGITS)


class Executions:
    """Durations of the fleet's latest executions: the estimate for a task's first round."""

    def __init__(self, kept: int = 256) -> None:
        self._seconds: deque[float] = deque(maxlen=kept)
        self._median: float | None = UNKNOWN

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._median = None

    def median(self) -> float:
        """Return the median, s; `UNKNOWN` before the first execution."""
        if self._median is None:
            self._median = median(self._seconds)
        return self._median


@dataclass(slots=True, eq=False)
class Task:
    """The current task of a robot; `started`: its first request, s on the server's clock."""

    name: str
    started: float
    request: Request
    wait: WaitTime = field(default_factory=WaitTime)
    is_dispatched: bool = False
    waiting: Waiting | None = None
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Robot:
    """The current task of a robot and the names of its finished ones."""

    task: Task | None = None
    old: deque[str] = field(default_factory=lambda: deque(maxlen=OLD_TASKS))

    def retire(self) -> None:
        if self.task:
            self.old.append(self.task.name)
            self.task = None


class RoundTable:
    """The rounds of all robots. Each call costs O(1)."""

    def __init__(self) -> None:
        self.robots: dict[str, Robot] = {}
        self.executions = Executions()

    def submit(self, request: Request, now: float) -> Receipt:
        """Register a request; if it is queued, `waiting` of its task is replaced.

        The first request of a robot adds the robot, up to MOST_ROBOTS.
        """
        robot = self.robots.get(request.robot)
        if robot is None:
            if len(self.robots) >= MOST_ROBOTS:
                return Receipt(
                    Verdict.REFUSED, f'robots must be at most {MOST_ROBOTS} (got one more)'
                )
            robot = self.robots[request.robot] = Robot()
        if request.task in robot.old:
            return Receipt(Verdict.LATE)
        task = robot.task
        if task and task.name == request.task:
            self._note(task, request.execution, now)
            if request.round < task.request.round:
                return Receipt(Verdict.LATE)
            if request.round == task.request.round:
                if task.answer:
                    return Receipt(Verdict.ANSWERED, answer=task.answer)
                return Receipt(Verdict.DUPLICATE)
            due = self._due(task, request, now)
            task.request, task.answer = request, None
        else:
            robot.retire()
            task = robot.task = Task(request.task, now, request)
            self._note(task, request.execution, now)
            due = math.inf
        execution = task.wait.execution
        task.is_dispatched = False
        task.waiting = Waiting(
            robot=request.robot,
            task=request.task,
            round=request.round,
            arrived=now,
            started=task.started,
            waited=task.wait.total,
            due=due,
            generation=task.wait.generation,
            execution=self.executions.median() if execution is None else execution,
            deadline=now + request.within,
            bytes=request.observation_bytes,
        )
        return Receipt(Verdict.QUEUED)

    def find(self, waiting: Waiting) -> Task | None:
        """Return the task whose newest round this is; None if the robot moved on or vanished."""
        robot = self.robots.get(waiting.robot)
        task = robot.task if robot else None
        return task if task and task.waiting is waiting else None

    def answer(self, waiting: Waiting, answer: Answer, start: float, end: float) -> bool:
        """Record a generation and return whether the answer is the first to its round."""
        task = self.find(waiting)
        if task is None or task.answer:
            return False
        task.answer, task.is_dispatched = answer, False
        task.wait.generated(waiting.round, start, end)
        return True

    def finish(self, robot: str, task: str) -> None:
        account = self.robots.get(robot)
        if account and account.task and account.task.name == task:
            account.retire()

    def vanish(self, robot: str) -> None:
        self.robots.pop(robot, None)

    def _note(self, task: Task, done: LastExecution | None, now: float) -> None:
        if done is not None and task.wait.executed(done.round, done.start, done.end, now):
            self.executions.add(done.end - done.start)

    def _due(self, task: Task, request: Request, now: float) -> float:
        """Return when the wait for this round begins, s on the server's clock."""
        done, answer = request.execution, task.answer
        if not done or not answer or not done.round == answer.round == request.round - 1:
            return math.inf
        left = min(1.0, done.remaining / max(answer.execution_horizon, 1))
        return task.wait.due(done.round, now + left * (done.end - done.start))
