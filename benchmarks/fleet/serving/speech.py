"""Language in virtual time, computed by the engine when the fleet's own rule has time for it.

Knows the engine, its thread and a schedule. Does not know robots; the idle time before the next
expected request is passed in. The cost of language work is given, whatever it takes in reality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.fleet.serving.schedule import Schedule
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.fleet.request_timing import LATE
from embodied_kv.types import TextDelta

Seconds = Mapping[str, Mapping[int, float]]
NOTHING = 1e-9  # s of work that is charged elsewhere, as chunks are by their batch


class Charged(LatencyEstimator):
    """Fixed seconds by kind of work ('begin', 'decode') and by its size, used as estimates.

    spent: s, of all that was observed.
    """

    def __init__(self, seconds: Seconds) -> None:
        super().__init__()
        for kind, by_size in seconds.items():
            for size, cost in by_size.items():
                super().observe(kind, cost, int(size))
        self.spent = 0.0

    def observe(self, kind: str, seconds: float, size: int = 1) -> None:
        """Add the charge of work that was done, and not the seconds that it took."""
        if self._measured[kind]:
            self.spent += self.estimate(kind, size)

    def estimate(self, kind: str, size: int = 1) -> float:
        return super().estimate(kind, size) or NOTHING

    def forget_oldest(self, kind: str, size: int = 1) -> None:
        """Do nothing: a charge does not change."""


class Speech:
    """The language work of an engine.

    slack: idle time at a moment, as `TimeBudget.forecast`. hear: receives the text deltas. free:
    when the unit of language work that was begun last is over, s.
    """

    def __init__(
        self,
        engine: Engine,
        device: EngineThread,
        schedule: Schedule,
        seconds: Seconds,
        slack: Callable[[float], float],
        hear: Callable[[Sequence[TextDelta]], None],
    ) -> None:
        self._engine, self._device, self._schedule = engine, device, schedule
        self._slack, self._hear = slack, hear
        self.costs = engine.latency = engine.budget.latency = Charged(seconds)
        self.free = self._again = 0.0
        engine.budget.forecast = _closed

    def step(self) -> None:
        """Do a unit of language work, if one fits before the next expected request."""
        now, before = self._schedule.now, self.costs.spent
        if now < self.free or not self._engine.kv.streams.live():
            return
        if self._slack(now) > 0:  # else there is no need to call the engine thread
            self._device.call(partial(self._unit, now)).result()
        if spent := self.costs.spent - before:
            self.free = now + spent
            self._schedule.at(self.free, _look_again)
        elif now >= self._again:  # an expected request may not have come
            self._again = now + LATE
            self._schedule.at(self._again, _look_again)

    def _unit(self, now: float) -> None:
        engine = self._engine
        engine.budget.forecast = self._slack
        try:
            if engine.decode_fits(now):
                self._hear(engine.decode())
        finally:
            engine.budget.forecast = _closed


def _closed(now: float) -> float:
    """Return no idle time: the engine thread begins no language work on its own."""
    return -math.inf


def _look_again() -> None:
    """Do nothing: `step` follows every call of the schedule."""
