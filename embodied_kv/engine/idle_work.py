"""Fair shares of the idle time for work without a deadline.

The clients of the idle time are the plans of each robot, the text streams of all robots, questions
about frames that are not prefilled yet, and the compiler. Each client offers one unit of work at a
time. Chunks and prefills are not among them: they have deadlines and come first.

Source: start-time fair queuing (Goyal, Vin and Cheng 1996). A unit's start tag is the end tag of
its client's last unit, but not less than the start tag of the unit that began last; its end tag is
its start tag plus its duration, divided by the client's value. The lowest start tag begins first.
"""

from __future__ import annotations

from collections.abc import Iterable


class FairShares:
    """The order of clients by the time that they have received. For one thread.

    Laws. While two clients both have work that fits, the times that they receive, each divided by
    the client's value, differ by at most the sum of one unit of each, also divided. A client
    without work saves up no time. So no client starves: one waits for at most the units that bring
    the others level with it.
    """

    def __init__(self) -> None:
        self._now = 0.0  # start tag of the unit that began last
        self._ends: dict[str, float] = {}  # client -> end tag of its last unit, above `_now`

    def order(self, clients: Iterable[str]) -> list[str]:
        """Return the clients that have work, the first to serve first; equals in given order."""
        return sorted(clients, key=self._start)

    def served(self, client: str, seconds: float, value: float = 1.0) -> None:
        """Record a unit of work.

        Args:
            client: The client of the unit.
            seconds: The duration of the unit.
            value: The weight of the client, above 0, such as the number of robots that wait.
        """
        self._now = self._start(client)
        self._ends[client] = self._now + seconds / value
        self._ends = {name: end for name, end in self._ends.items() if end > self._now}

    def rest(self) -> None:
        """Record that no client has work; then all begin alike."""
        self._now = 0.0
        self._ends.clear()

    def _start(self, client: str) -> float:
        return max(self._now, self._ends.get(client, self._now))
