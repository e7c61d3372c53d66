"""The rounds of every robot, on the server: what each one asked, was answered and executed.

Knows robots, tasks and rounds. Does not know who is served next, nor by which engine.

A round goes submitted -> dispatched -> answered -> executed; taken back from an engine it is
submitted again. The laws:

- a robot has one task and the task one round; a newer one takes its place, an older one is late
- a round is answered at most once; whoever repeats it hears the same answer
- a robot reaches its own account only: whatever it sends changes no other robot's rounds
- of a robot that vanished nothing is left; it has to register again
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from embodied_kv.fleet.protocol import Answer, LastExecution, Receipt, Request, Verdict, name
from embodied_kv.fleet.scheduler import Waiting
from embodied_kv.fleet.wait import Executions, Wait

MOST_ROBOTS = 4096
OLD_TASKS = 16  # finished tasks that a robot's late requests are recognised by


class Phase(Enum):
    """Where a task's newest round stands."""

    SUBMITTED = 'submitted'
    DISPATCHED = 'dispatched'
    ANSWERED = 'answered'
    EXECUTED = 'executed'


@dataclass(slots=True, eq=False)
class Task:
    """A robot's present task. started: of its first request, s on the server's clock."""

    name: str
    started: float
    request: Request
    wait: Wait = field(default_factory=Wait)
    phase: Phase = Phase.SUBMITTED
    waiting: Waiting | None = None
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Robot:
    """A registered robot. heard: when it last said anything, s on the server's clock."""

    heard: float
    task: Task | None = None
    old: deque[str] = field(default_factory=lambda: deque(maxlen=OLD_TASKS))

    def retire(self) -> None:
        if self.task:
            self.old.append(self.task.name)
            self.task = None


class Ledger:
    """All robots' accounts. Every call costs O(1)."""

    def __init__(self) -> None:
        self.robots: dict[str, Robot] = {}
        self.executions = Executions()

    def register(self, robot: str, now: float) -> Receipt:
        """Opens an account; again: it is heard of, and nothing else changes."""
        name('robot', robot)
        if robot not in self.robots and len(self.robots) >= MOST_ROBOTS:
            return Receipt(Verdict.REFUSED, f'{MOST_ROBOTS} robots are registered: no room')
        self.robots.setdefault(robot, Robot(now)).heard = now
        return Receipt(Verdict.QUEUED)

    def submit(self, request: Request, now: float) -> Receipt:
        """A request came. QUEUED: its task's `waiting` is new, and what it replaced is over."""
        robot = self.robots.get(request.robot)
        if robot is None:
            return Receipt(Verdict.REFUSED, f'{request.robot} is not registered')
        robot.heard = now
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
        task.phase = Phase.SUBMITTED
        task.waiting = self._waiting(task, due, now)
        return Receipt(Verdict.QUEUED)

    def find(self, waiting: Waiting) -> Task | None:
        """The task whose newest round this is; None where the robot has moved on or vanished."""
        robot = self.robots.get(waiting.robot)
        task = robot.task if robot else None
        return task if task and task.waiting is waiting else None

    def answer(self, waiting: Waiting, answer: Answer, start: float, end: float) -> bool:
        """The round was generated from start to end: whether this answer is the first."""
        task = self.find(waiting)
        if task is None or task.answer:
            return False
        task.answer, task.phase = answer, Phase.ANSWERED
        task.wait.generated(waiting.round, start, end)
        return True

    def executed(self, robot: str, task: str, done: LastExecution, now: float) -> None:
        """A robot tells of an execution without asking for more; of another task: nothing."""
        account = self.robots.get(robot)
        if account and account.task and account.task.name == task:
            account.heard = now
            self._note(account.task, done, now)

    def finish(self, robot: str, task: str) -> None:
        """The robot's task is over; a task that is not its present one changes nothing."""
        account = self.robots.get(robot)
        if account and account.task and account.task.name == task:
            account.retire()

    def vanish(self, robot: str) -> None:
        """Closes the account."""
        self.robots.pop(robot, None)

    def _note(self, task: Task, done: LastExecution | None, now: float) -> None:
        if done is None:
            return
        if task.wait.executed(done.round, done.start, done.end, now):
            self.executions.add(done.end - done.start)
        if task.phase is Phase.ANSWERED and done.round == task.request.round:
            task.phase = Phase.EXECUTED

    def _due(self, task: Task, request: Request, now: float) -> float:
        """From when on the wait for this round counts; its clock is the server's."""
        done, answer = request.execution, task.answer
        if not done or not answer or not done.round == answer.round == request.round - 1:
            return math.inf
        left = min(1.0, done.remaining / max(answer.execution_horizon, 1))
        return task.wait.due(done.round, now + left * (done.end - done.start))

    def _waiting(self, task: Task, due: float, now: float) -> Waiting:
        execution = task.wait.execution
        return Waiting(
            robot=task.request.robot,
            task=task.name,
            round=task.request.round,
            arrived=now,
            started=task.started,
            waited=task.wait.total,
            due=due,
            generation=task.wait.generation,
            execution=self.executions.median() if execution is None else execution,
            deadline=now + task.request.within,
            bytes=task.request.observation_bytes,
        )
