"""Virtual time, s: planned calls and their moments. It uses no clock and never waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Act = Callable[[], object]


class Schedule:
    """Planned calls by moment; those of one moment in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, int, Act]] = []
        self._count = count()

    def at(self, moment: float, act: Act) -> None:
        """Plan a call. A moment that has passed is now."""
        heapq.heappush(self._plan, (max(moment, self.now), next(self._count), act))

    def run(self, goes_on: Callable[[], bool], after: Act) -> None:
        """Make the planned calls in order while `goes_on` is true, and `after` after each."""
        while self._plan and goes_on():
            self.now, _, act = heapq.heappop(self._plan)
            act()
            after()
