"""When the robots of a fleet are expected to ask again: what is done until then delays nobody.

Knows rounds and what their requests said of the execution before. Does not know what the time is
used for. Any thread may call it.
"""

from __future__ import annotations

import math
from threading import Lock

LATE = 0.02  # s that a request may come after its moment: a robot looks so often what is due


class Forecast:
    """The moment of each robot's next request, s on the server's clock.

    A robot asks while so many actions remain of the execution before; fewer, where its answer came
    too late for that. So a round with an answer says when the next one comes. Of robots that never
    executed anything nothing is known.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._moments: dict[str, float] = {}
        self._ahead: dict[str, float] = {}  # s before the end of an execution, at most

    def asked(self, robot: str) -> None:
        """It has asked, or will not for now: it is not expected."""
        with self._lock:
            self._moments.pop(robot, None)

    def answered(self, robot: str, asked: float, ahead: float, lasts: float, now: float) -> None:
        """A robot that asked at `asked` is answered now.

        ahead: s that it could still execute when it asked. lasts: s of the actions that it got.
        They count from its request on, but for the time that it stood still.
        """
        ends = asked + max(0.0, now - asked - ahead) + lasts
        with self._lock:
            self._ahead[robot] = max(ahead, self._ahead.get(robot, 0.0))
            self._moments[robot] = max(now, ends - self._ahead[robot])

    def forget(self, robot: str) -> None:
        """It is gone."""
        with self._lock:
            self._moments.pop(robot, None)
            self._ahead.pop(robot, None)

    def next(self, now: float) -> float:
        """The next moment, s; infinite where nobody is expected.

        It may have passed, by LATE at most: who does not ask until then is not waited for.
        """
        with self._lock:
            return min((m for m in self._moments.values() if m > now - LATE), default=math.inf)
