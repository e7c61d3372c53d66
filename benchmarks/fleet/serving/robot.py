"""A robot of a fleet in virtual time: when it sends requests, and what it executes.

It sends requests and counts actions as the node `action` of a robot without a model does
(`RequestTiming` decides; it reports its executions, has one request at a time, and repeats none),
and executes them as the simulator does. That node itself runs on the steady clock, so it cannot be
used here. Differences:
- The robot sends a request at the very moment at which it is due, with an image of that moment,
  and acts on an answer at its next set-point. Its own clock counts set-points from its start.
- When its task is over it resets its session, as the endpoint `reset` does: tasks with the same
  instruction are different tasks. A request that still waits is withdrawn; a client would have to
  await its reply, or to connect again.
- A robot that continues prompts asks all of them after a chunk; the node `language` of a robot
  without a model asks them one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from benchmarks.fleet.serving.schedule import Schedule
from embodied_kv.control import execution_horizon
from embodied_kv.fleet.request_timing import RequestTiming
from embodied_kv.serving.batch import TimedObservation
from embodied_kv.serving.fleet_server import ServedChunk
from embodied_kv.serving.stream_quota import QuotaError
from embodied_kv.serving.websocket.sessions import Sessions

SET_POINTS = 100  # a second; of the simulator
_ROUNDING = 1e-6  # moments closer than this are the same


class World(Protocol):
    """The world of the robots; moments are counted in set-points since the task's begin."""

    def begin(self, robot: int, task: int) -> str:
        """Begin the robot's next task, and return its instruction."""

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return images by view, uint8 [height, width, 3], and the present state float [D]."""

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        """Execute these actions [n, A]; the first was due at `began`, then one every dt."""

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        """Go on to this moment; return whether the task is done, and whether its time is up."""


@dataclass(frozen=True)
class Habits:
    """How all robots send requests, and how often a task is judged.

    execution_horizon: the policy that they name. dt: s between two actions. request_ahead: actions
    before the end of an execution at which the next chunk is requested. judged: set-points between
    two checks whether the task is done. prompts: that are continued on every chunk whose number
    `prompt_interval_frames` divides, up to `max_tokens` each.
    """

    execution_horizon: str
    dt: float
    request_ahead: int = 1
    judged: int = 10
    prompts: tuple[str, ...] = ()
    prompt_interval_frames: int = 1
    max_tokens: int = 32


class Player:
    """One robot and its tasks in order, then repeated, so that the fleet stays as busy.

    start: when it begins, s. on_end: called when a task was over once. arrivals: of each task, s;
    a task begins no sooner, and none is repeated. horizons: of tasks that have a policy of their
    own. finished: a dict for each task that was over once: its number, success, begin, seconds
    since it arrived or was begun, seconds of these that the robot stood still, and the horizon of
    every round.
    """

    def __init__(
        self,
        number: int,
        sessions: Sessions,
        world: World,
        habits: Habits,
        tasks: Sequence[int],
        start: float,
        schedule: Schedule,
        on_end: Callable[[], object] = lambda: None,
        arrivals: Sequence[float] = (),
        horizons: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._sessions, self._session = sessions, sessions.open(f'/serving{number}')
        self._views = sessions.engine.policy.config.views
        self._number, self._world, self._habits, self._on_end = number, world, habits, on_end
        self._tasks, self._start, self._schedule = tasks, start, schedule
        self._arrivals, self._own_horizons = arrivals, horizons
        self.finished: list[dict] = []
        self._begun = 0  # tasks
        self._answer: Future[ServedChunk] | None = None
        self._chunks = 0  # that it received
        self._planned: set[int] = set()  # set-points at which it decides what to do
        schedule.at(start, lambda: self._begin(0))

    @property
    def is_done(self) -> bool:
        """Return whether every task was over once."""
        return len(self.finished) == len(self._tasks)

    @property
    def is_answered(self) -> bool:
        """Return whether there is an answer on which the robot has not acted yet."""
        return self._answer is not None and self._answer.done()

    def wake(self) -> None:
        """Act on an answer at the next set-point."""
        elapsed = (self._schedule.now - self._start) * SET_POINTS
        self._plan(math.ceil(elapsed - _ROUNDING))

    def _plan(self, moment: int) -> None:
        if moment not in self._planned:
            self._planned.add(moment)
            self._schedule.at(self._start + moment / SET_POINTS, lambda: self._look(moment))

    def _begin(self, moment: int) -> None:
        arrived = moment
        if self._arrivals:
            if self._begun == len(self._tasks):
                return
            elapsed = (self._arrivals[self._begun] - self._start) * SET_POINTS
            arrived = math.ceil(elapsed - _ROUNDING)
            if arrived > moment:
                due = self._start + arrived / SET_POINTS
                self._schedule.at(due, lambda: self._begin(arrived))
                return
        habits, self._task = self._habits, self._tasks[self._begun % len(self._tasks)]
        horizon = self._own_horizons.get(self._task, habits.execution_horizon)
        self._horizon = execution_horizon.parse(horizon)
        self._begun += 1
        self._arrived, self._first, self._still = arrived, moment, 0.0
        self._instruction = self._world.begin(self._number, self._task)
        self._timing = RequestTiming(habits.dt, habits.request_ahead, math.inf)
        self._horizons: list[int] = []
        self._plan(moment)

    def _look(self, moment: int) -> None:
        self._planned.discard(moment)
        done, over = self._world.advance(self._number, moment - self._first)
        if done or over:
            self._finish(moment, done)
            return
        now = moment / SET_POINTS
        if self.is_answered:
            self._take(now)
        if self._timing.due(now + _ROUNDING):
            self._ask(moment)
        habits = self._habits
        judged = moment + habits.judged - (moment - self._first) % habits.judged
        self._plan(min(judged, max(moment + 1, self._due)))

    @property
    def _due(self) -> float:
        """Return the set-point of the next request, if nothing comes before."""
        habits, timing = self._habits, self._timing
        if timing.waiting:
            return math.inf
        return math.ceil((timing.ends - habits.request_ahead * habits.dt) * SET_POINTS - _ROUNDING)

    def _ask(self, moment: int) -> None:
        images, state = self._world.look(self._number)
        self._observed = now = moment / SET_POINTS
        execution = self._timing.execution(now)
        self._timing.ask(now)
        seen = TimedObservation(
            images=tuple(images[view] for view in self._views),
            state=state,
            instruction=self._instruction,
            stamp=moment * 10**9 // SET_POINTS,
            deadline=math.inf,
            sequence=self._session.next,
            robot=self._session.name,
            horizon=self._horizon,
            execution=execution,
        )
        self._answer = self._sessions.infer(self._session, seen)

    def _take(self, now: float) -> None:
        timing = self._timing
        chunk, self._answer = self._answer.result().chunk, None
        self._still += now - min(now, max(timing.ends, self._first / SET_POINTS))
        timing.round = chunk.sequence
        began = timing.take(chunk.execution_horizon, self._observed, now)
        self._horizons.append(chunk.execution_horizon)
        actions = chunk.values[: chunk.execution_horizon]
        self._world.follow(self._number, actions, round(began * SET_POINTS) - self._first)
        self._chunks += 1
        if self._chunks % self._habits.prompt_interval_frames == 0:
            self._speak()

    def _speak(self) -> None:
        for prompt in self._habits.prompts:
            name, tokens = self._session.name, self._habits.max_tokens
            text = self._sessions.ask(name, prompt, tokens, evict=False)
            if text.done() and not isinstance(text.exception(), QuotaError):
                text.result()

    def _finish(self, moment: int, done: bool) -> None:
        if not self.is_done:
            self.finished.append(
                dict(
                    task=self._task,
                    success=done,
                    begin=self._start + self._first / SET_POINTS,
                    seconds=(moment - self._arrived) / SET_POINTS,
                    still=self._still,
                    horizons=self._horizons,
                )
            )
            self._on_end()
        self._answer = None
        self._sessions.reset(self._session)
        self._begin(moment)
