"""When a robot requests its next chunk: on the robot, and as the server forecasts it.

`RequestTiming` also determines the moment from which the actions of a chunk count: that of the
observation, plus the time for which the robot has stood still since. A robot that stands still
remains in the observed state; while it moves, it executes the previous chunk instead of the first
actions of the new one.
"""

from __future__ import annotations

import math
from threading import Lock

from embodied_kv.fleet.protocol import LastExecution

LATE = 0.02  # s; maximum delay of a request after its moment, by the robot's polling
_TICK = 1e-6  # s; moments closer than this are the same


class RequestTiming:
    """The rounds of one robot, on its steady clock.

    Args:
        dt: Seconds between two actions.
        request_ahead: Actions before the end of an execution at which the next chunk is requested.
        retry_interval: Seconds without an answer after which a request is repeated.
    """

    def __init__(self, dt: float, request_ahead: int, retry_interval: float) -> None:
        self._dt, self._ahead, self._retry = dt, request_ahead * dt, retry_interval
        self.ends = -math.inf  # end of the current execution, s
        self.begin('')

    def begin(self, task: str, next: int = 0) -> None:
        """Begin a task whose first round is `next`; the current execution continues."""
        self.task, self.round, self.waiting = task, next - 1, False
        self._sent = -math.inf
        self._started: tuple[int, float] | None = None  # the newest execution: round, moment

    @property
    def next(self) -> int:
        """The number of the round that is requested next, or that the robot waits for."""
        return self.round if self.waiting else self.round + 1

    def execute(self, actions: int, now: float) -> None:
        """Record that the robot now executes actions that belong to no round of the task."""
        self.ends, self._started = now + actions * self._dt, None

    def due(self, now: float) -> bool:
        """Return whether to send a request now, for the next round or repeated."""
        if self.waiting:
            return now >= self._sent + self._retry
        return now >= self.ends - self._ahead

    def ask(self, now: float) -> int:
        """Record that a request is sent now; return the number of its round."""
        if not self.waiting:
            self.round, self.waiting = self.round + 1, True
        self._sent = now
        return self.round

    def execution(self, now: float) -> LastExecution | None:
        """Return the newest execution of this task, as a request reports it."""
        if self._started is None:
            return None
        number, start = self._started
        remaining = max(0, math.ceil((self.ends - now) / self._dt - _TICK))
        return LastExecution(number, start, max(start, self.ends), remaining)

    def take(self, execution_horizon: int, observed: float, now: float) -> float:
        """Record the answer to this round; return the moment from which its actions count.

        Args:
            execution_horizon: The number of actions that are executed.
            observed: The moment of the observation.
            now: The moment of the answer.
        """
        began = observed + max(0.0, now - max(self.ends, observed))
        first = max(0, math.ceil((now - began) / self._dt - _TICK))
        self.waiting = False
        if first < execution_horizon:
            self._started = self.round, max(now, began + first * self._dt)
            self.ends = began + execution_horizon * self._dt
        return began


class Forecast:
    """The expected moment of each robot's next request, s on the server's clock.

    A robot sends a request while a fixed number of actions of the last execution remains, or
    fewer if the answer came too late. So an answered round determines the next request. Robots
    that have not executed anything have no forecast. Any thread may call the methods.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._moments: dict[str, float] = {}
        self._ahead: dict[str, float] = {}  # s before the end of an execution, at most

    def asked(self, robot: str) -> None:
        """Drop the forecast of a robot that has sent a request, or that will send none."""
        with self._lock:
            self._moments.pop(robot, None)

    def answered(self, robot: str, asked: float, ahead: float, lasts: float, now: float) -> None:
        """Update the forecast by an answer to a request.

        Args:
            robot: The name of the robot.
            asked: Moment of the request.
            ahead: Seconds of execution that remained at the request.
            lasts: Seconds of the actions of the answer. They count from the request on, plus the
                time for which the robot stood still.
            now: Moment of the answer.
        """
        ends = asked + max(0.0, now - asked - ahead) + lasts
        with self._lock:
            self._ahead[robot] = max(ahead, self._ahead.get(robot, 0.0))
            self._moments[robot] = max(now, ends - self._ahead[robot])

    def forget(self, robot: str) -> None:
        with self._lock:
            self._moments.pop(robot, None)
            self._ahead.pop(robot, None)

    def next(self, now: float) -> float:
        """Return the next expected request, s; infinity if none is expected.

        The moment may have passed by at most LATE; a robot that is later is not waited for.
        """
        with self._lock:
            return min((m for m in self._moments.values() if m > now - LATE), default=math.inf)
