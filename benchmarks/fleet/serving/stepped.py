"""A fleet's server that the owner of its clock steps, and a scheduler that is timed.

Knows the server. Does not know engines or robots.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.schedulers import Scheduler, Waiting
from embodied_kv.serving.fleet_server import FleetServer

FAULTS = ('faults', 'engine errors', 'overdue')  # in virtual time there are none


class Timed(Scheduler):
    """A scheduler, and the cost of its decisions: how many robots waited, and seconds."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.decisions: list[tuple[int, float]] = []

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        began = time.perf_counter()
        ordered = self._scheduler.order(waiting, now)
        self.decisions.append((len(waiting), time.perf_counter() - began))
        return ordered


class Stepped(FleetServer):
    """A server without a thread: the owner of its clock steps it."""

    def __init__(self, dispatcher: Dispatcher, *arguments: object, **options: object) -> None:
        super().__init__(dispatcher, *arguments, **options)
        self.scheduler = dispatcher.scheduler = Timed(dispatcher.scheduler)

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: there is no thread."""

    @property
    def told(self) -> int:
        """Return the number of events that are not processed yet."""
        return self._events.qsize()

    def catch_up(self) -> float:
        """Process all events and what is due; return when something is due by time alone, s.

        Raises RuntimeError for any fault.
        """
        self.step()
        while self.told:
            self.step()
        if bad := {kind: self.counts[kind] for kind in FAULTS if self.counts[kind]}:
            raise RuntimeError(f'the fleet counts {bad}: see the log')
        return self.wake()
