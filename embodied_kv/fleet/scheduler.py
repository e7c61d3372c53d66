"""What a scheduler sees and what it answers: of those that wait, who goes first.

Knows requests that wait. Does not know robots' messages, engines or clocks: `now` is given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Waiting:
    """One request that waits for an engine. A robot has at most one.

    arrived: of this request, started: of its task's first, both s on the server's clock. waited:
    the task's waits between rounds, generation: attained so far, execution: how long the chunk is
    expected to be executed, all s. deadline: by which an answer is of use, s on the server's
    clock. skipped: decisions in a row that chose others. lost_batches: what happened to each batch
    that was lost with it. due: from when on this round keeps its robot waiting, s on the server's
    clock (`Wait.due`).
    """

    robot: str
    task: str
    round: int
    arrived: float
    started: float
    waited: float
    generation: float
    execution: float
    bytes: int = 0
    skipped: int = 0
    lost_batches: tuple[str, ...] = ()
    deadline: float = math.inf
    due: float = math.inf


class Scheduler(ABC):
    """An order over those that wait, in O(n log n)."""

    @abstractmethod
    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        """All of them, the first to serve first."""

    def sent(self, batch: Sequence[Waiting], now: float) -> None:
        """These go to an engine now."""
        return None  # whoever ranks by requests alone keeps no account

    def pick(self, waiting: Collection[Waiting], now: float, room: int) -> list[Waiting]:
        """The batch to serve: at most `room`, and all if that many fit. The others are skipped."""
        batch = self.order(waiting, now)[:room]
        skip(waiting, batch)
        return batch


def skip(waiting: Collection[Waiting], batch: Sequence[Waiting]) -> None:
    """Counts a decision for those it left out; one that chose nobody is none."""
    if batch:
        for request in waiting:
            request.skipped += 1
        for request in batch:
            request.skipped = 0
