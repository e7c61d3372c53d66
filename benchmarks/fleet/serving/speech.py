"""Words in virtual time: computed by the engine when the fleet's own rule has time for them.

Knows the engine, its device thread and a schedule. Does not know robots, nor who is expected: that
it is told. What words cost is given, whatever they take in truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.fleet.serving.schedule import Schedule
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.fleet.forecast import LATE
from embodied_kv.types import TextDelta

Seconds = Mapping[str, Mapping[int, float]]
NOTHING = 1e-9  # s of what is charged elsewhere: chunks are, by their batch


class Charged(LatencyEstimator):
    """Seconds by kind of work ('begin', 'decode') and by its size, as estimates are made of them.

    spent: s, of all that was observed.
    """

    def __init__(self, seconds: Seconds) -> None:
        super().__init__()
        for kind, by_size in seconds.items():
            for size, cost in by_size.items():
                super().observe(kind, cost, int(size))
        self.spent = 0.0

    def observe(self, kind: str, seconds: float, size: int = 1) -> None:
        """It was done: its charge counts, and not the seconds that it took."""
        if self._measured[kind]:
            self.spent += self.estimate(kind, size)

    def estimate(self, kind: str, size: int = 1) -> float:
        return super().estimate(kind, size) or NOTHING

    def forget_oldest(self, kind: str, size: int = 1) -> None:
        """Nothing: a charge does not change."""


class Speech:
    """What an engine says. slack: of a moment, as `TimeBudget.forecast`. hear: takes the words.

    free: when the unit of language work that was begun last is over, s.
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
        """A unit of language work, if there is any and it fits before anybody is expected."""
        now, before = self._schedule.now, self.costs.spent
        if now < self.free or not self._engine.kv.streams.live():
            return
        if self._slack(now) > 0:  # else the device thread need not be asked
            self._device.call(partial(self._unit, now)).result()
        if spent := self.costs.spent - before:
            self.free = now + spent
            self._schedule.at(self.free, _look_again)
        elif now >= self._again:  # whoever was expected may not have come
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
    """The device thread says nothing by itself."""
    return -math.inf


def _look_again() -> None:
    """Whoever runs the schedule takes a step after each of its acts."""
