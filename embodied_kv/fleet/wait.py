"""How long a task has waited for compute, from its intervals of generation and execution.

Knows rounds and their intervals. Does not know queues, engines or other tasks.

Clocks: a generation is measured by the server (from dispatch to answer, engine's network
included), an execution by the robot (its first and last action). Every difference below is taken
within one clock, so an offset between the two changes nothing; a robot's clock that jumps is held
by a bound that the server measures itself. Source: Kairos, section 3.2.1 and equation 1.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

DIGITS = 6  # of a duration, s: what a clock's offset does to the last bits decides nothing
KEPT = 16  # rounds that may still be incomplete; older ones count no more
UNKNOWN = 1.0  # s; an execution's estimate before any robot has executed anything


@dataclass(slots=True)
class _Round:
    generation: tuple[float, float] | None = None
    execution: tuple[float, float] | None = None
    received: float = 0.0  # when the server heard of the execution, s on its clock
    settled: bool = False


class Wait:
    """The waits of one task, kept incrementally: O(1) for each report.

    W_j, between rounds j and j + 1, is measured on the side that dominates round j:

        |G_j| >= |E_j|:  W_j = G_{j+1}.start - G_j.end     (server's clock)
        else:            W_j = E_{j+1}.start - E_j.end     (robot's clock)

    and at least 0. The latter is at most what the server saw pass between answering round j and
    hearing of execution j + 1, less |E_j|: no robot can claim a longer wait than it had.

    Reports may come twice, late and in any order: the first of a kind counts for each round, a
    round counts once both neighbours are known, and a round that is `KEPT` behind the newest one
    never does. Of a round without an answer nothing is counted on either side of it.
    """

    def __init__(self) -> None:
        self.total = 0.0  # s
        self.generation = 0.0  # s of generation so far
        self.execution: float | None = None  # s, of the newest executed round
        self._rounds: dict[int, _Round] = {}
        self._newest = self._newest_execution = -1

    def generated(self, number: int, start: float, end: float) -> None:
        """Round `number` was generated from start to end, s on the server's clock."""
        record = self._record(number)
        if record is None or record.generation:
            return
        record.generation = start, end
        self.generation += end - start
        self._settle(number - 1)
        self._settle(number)

    def executed(self, number: int, start: float, end: float, received: float) -> bool:
        """Its actions ran, or will have run, from start to end, s on the robot's clock.

        received: when the server heard it, s on the server's clock. Answers whether it is news.
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
        """From when on the wait between round `number` and the next counts, s, server's clock.

        While the next round is pending its wait so far is what has passed since: of a wait that is
        never more than W_j will be. ends: of the round's execution, as far as the server can tell;
        not before it could have been executed, whatever a robot says. Infinite where the round
        has no generation or no execution.
        """
        here = self._rounds.get(number)
        if not here or not here.generation or not here.execution:
            return math.inf
        answered, execution = here.generation[1], _seconds(here.execution)
        if _seconds(here.generation) >= execution:
            return answered
        return max(ends, answered + execution)

    def ratio(self, now: float, started: float) -> float:
        """Share of its life that the task has waited (equation 1), in [0, 1]; 0 at the start."""
        return min(self.total / (now - started), 1.0) if now > started else 0.0

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
    """How long the fleet's latest executions took: the estimate for a task's first round."""

    def __init__(self, kept: int = 256) -> None:
        self._seconds: deque[float] = deque(maxlen=kept)
        self._median: float | None = None

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._median = None

    def median(self) -> float:
        """Seconds; `UNKNOWN` where nothing has been executed yet."""
        if self._median is None:
            self._median = median(self._seconds) if self._seconds else UNKNOWN
        return self._median
