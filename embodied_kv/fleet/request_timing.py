"""When a robot asks its fleet, and from which moment on the answer's actions count.

Knows one robot's rounds, on its steady clock, s. Does not know messages or observations.

A robot that stands still while it waits loses nothing by it: the world that it saw is the world
that it acts in. So the actions of a chunk count from the observation's moment on, less the time
that the robot stood still since; what passed while it was moving, the chunk before has done.
"""

from __future__ import annotations

import math

from embodied_kv.fleet.protocol import LastExecution

_TICK = 1e-6  # s; moments closer than this are the same


class RequestTiming:
    """The rounds of one robot.

    dt: s between two actions. request_ahead: actions before the end of an execution at which the
    next chunk is asked for. retry_interval: s without an answer after which a request is repeated.
    """

    def __init__(self, dt: float, request_ahead: int, retry_interval: float) -> None:
        self._dt, self._ahead, self._retry = dt, request_ahead * dt, retry_interval
        self.begin('')

    def begin(self, task: str, next: int = 0) -> None:
        """A new task, whose first round has this number; what is being executed goes on."""
        self.task, self.round, self.waiting = task, next - 1, False
        self.ends = getattr(self, 'ends', -math.inf)
        self._sent = -math.inf
        self._started: tuple[int, float] | None = None  # the newest execution: round, moment

    @property
    def next(self) -> int:
        """The number of the round that is asked for next, or waited for."""
        return self.round if self.waiting else self.round + 1

    def execute(self, actions: int, now: float) -> None:
        """From now on the robot executes so many actions that no round of this task gave it."""
        self.ends, self._started = now + actions * self._dt, None

    def due(self, now: float) -> bool:
        """Whether a request is to be sent now: the next round's, or this one's again."""
        if self.waiting:
            return now >= self._sent + self._retry
        return now >= self.ends - self._ahead

    def ask(self, now: float) -> int:
        """It is being sent: the round's number."""
        if not self.waiting:
            self.round, self.waiting = self.round + 1, True
        self._sent = now
        return self.round

    def execution(self, now: float) -> LastExecution | None:
        """The newest execution of this task, as a request tells it."""
        if self._started is None:
            return None
        number, start = self._started
        remaining = max(0, math.ceil((self.ends - now) / self._dt - _TICK))
        return LastExecution(number, start, max(start, self.ends), remaining)

    def take(self, execution_horizon: int, observed: float, now: float) -> float:
        """The chunk of this round has come: the moment from which its actions count.

        execution_horizon: how many are executed. observed: the moment of the observation.
        """
        began = observed + max(0.0, now - max(self.ends, observed))
        first = max(0, math.ceil((now - began) / self._dt - _TICK))
        self.waiting = False
        if first < execution_horizon:
            self._started = self.round, max(now, began + first * self._dt)
            self.ends = began + execution_horizon * self._dt
        return began
