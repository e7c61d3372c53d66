"""Virtual time, s: what happens when. Knows no clock, and waits for nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Act = Callable[[], object]


class Schedule:
    """What is planned, by its moment; of one moment, in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, int, Act]] = []
        self._count = count()

    def at(self, moment: float, act: Act) -> None:
        """Plan it. A moment that has passed is now."""
        heapq.heappush(self._plan, (max(moment, self.now), next(self._count), act))

    def run(self, goes_on: Callable[[], bool], after: Act) -> None:
        """One after the other, while it goes on; `after` each."""
        while self._plan and goes_on():
            self.now, _, act = heapq.heappop(self._plan)
            act()
            after()
