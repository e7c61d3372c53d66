"""Real-time chunking: how a chunk that is being made goes on from the one that runs.

Knows actions, their moments and delays. Does not know models, or who executes what. A leftover is
what is still to come of the running chunk, its row i due at the new observation + i * dt. While
the new chunk is made the first d of these rows are executed: the delay. So the new chunk is held
to them, then ever less, up to the horizon s.

Sources: Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies"
(their code calls d and s the start and the end of prefix attention). LeRobot's weights are the
same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.config import ModelConfig
from embodied_kv.engine_config import RTC_SCHEDULES, EngineConfig
from embodied_kv.types import Guide

LINEAR, EXPONENTIAL, ONES, ZEROS = SCHEDULES = RTC_SCHEDULES
WINDOW = 10  # latencies that are remembered, as in algorithm 1
_TICK = 1e-9  # s; moments closer than this are the same


def weights(
    delay: ArrayLike, horizon: ArrayLike, chunk_size: int, schedule: str
) -> NDArray[np.float64]:
    """How much each action is held to the leftover: float64 [..., chunk size] in [0, 1].

    delay, horizon: d and s, whole numbers [...] from 0 to the chunk size. 1 for i < d, 0 from s
    on, and between them

        linear         w = clip((d - 1 - i) / (s - d + 1) + 1, 0, 1)
        exponential    w (e^w - 1) / (e - 1) of that w
        ones, zeros    1, 0

    A delay beyond the horizon counts as the horizon. Raises ValueError.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f'schedule {schedule!r}: write one of {", ".join(SCHEDULES)}')
    end = _counts('horizon', horizon, chunk_size)
    start = np.minimum(_counts('delay', delay, chunk_size), end)
    start, end, i = start[..., None], end[..., None], np.arange(chunk_size)
    if schedule in (ONES, ZEROS):
        between = np.full(chunk_size, float(schedule == ONES))
    else:
        between = np.clip((start - 1 - i) / (end - start + 1) + 1, 0.0, 1.0)
    if schedule == EXPONENTIAL:
        between = between * np.expm1(between) / math.expm1(1.0)
    return np.where(i < start, 1.0, np.where(i < end, between, 0.0))


def passed(seconds: float, dt: float, most: int) -> int:
    """Actions due so many seconds after the first that are over by then, within [0, most].

    The one that is due at just this moment is not. Raises ValueError for what is no time.
    """
    if math.isnan(seconds) or not 0 < dt < math.inf:
        raise ValueError(f'{seconds} s in steps of {dt} s: both must be numbers, dt above 0')
    return math.ceil(min(max((seconds - _TICK) / dt, 0.0), most))


class DelayEstimator:
    """The delay that a chunk is made for: as long as the slowest of the latest ones took.

    A latency lasts from an observation until its chunk takes over, s. So frames that were skipped
    or merged have none, and what warms up has none. Only the last `window` count: a slow one is
    forgotten. dt: s between two actions. allowed: s from an observation to the deadline of its
    chunk, which is expected before anything is known. One thread observes, any may ask.
    """

    def __init__(self, dt: float, chunk_size: int, allowed: float, window: int = WINDOW) -> None:
        self.dt, self.chunk_size, self.allowed, self._window = dt, chunk_size, allowed, window
        self._latest: tuple[float, ...] = ()  # replaced, never changed

    def observe(self, latency: float) -> None:
        """A chunk has taken over; what a clock that jumped says is no time, and not remembered."""
        if 0 <= latency < math.inf:
            self._latest = (*self._latest, latency)[-self._window :]

    @property
    def latency(self) -> float:
        """s, of the chunk that took over last; NaN before any."""
        return self._latest[-1] if self._latest else math.nan

    def expected(self, age: float) -> int:
        """Actions that will have passed when a chunk that is begun now takes over.

        age: s since its observation; so many have passed already. One is always left to be made.
        """
        latency = max(self._latest, default=self.allowed)
        return passed(max(latency, age), self.dt, self.chunk_size - 1)


@dataclass(frozen=True)
class RealTimeChunking:
    """How the chunks of an arm go on from one another.

    horizon, schedule: as of `weights`; a horizon ends where the leftover does.
    """

    delays: DelayEstimator
    horizon: int
    schedule: str = EXPONENTIAL

    @classmethod
    def of(
        cls, config: EngineConfig, model: ModelConfig, allowed: float
    ) -> RealTimeChunking | None:
        """Return what the parameters of an engine configure; None where `rtc` is off.

        allowed: as of `DelayEstimator`.
        """
        if config.rtc == 'off':
            return None
        delays = DelayEstimator(model.action_dt, model.chunk_size, allowed)
        return cls(delays, config.horizon(model.chunk_size), config.rtc_schedule)

    def guide(self, leftover: NDArray[np.float64] | None, age: float) -> Guide | None:
        """What a chunk that is begun now is to go on from; None where nothing is left over.

        leftover: float64 [chunk size, joints], NaN beyond its end. age: s since the observation.
        No delay is beyond what is left over: then the arm comes to rest, which binds no chunk.
        """
        if leftover is None:
            return None
        known = int(np.isfinite(leftover).all(axis=1).sum())
        delay, end = min(self.delays.expected(age), known), min(self.horizon, known)
        return Guide(leftover, delay, weights(delay, end, len(leftover), self.schedule))

    def report(self) -> dict[str, object]:
        """What was found, for diagnostics."""
        return {
            'latency (ms)': f'{self.delays.latency * 1e3:.0f}',
            'delay of the next chunk (actions)': self.delays.expected(0.0),
        }


def _counts(name: str, value: ArrayLike, most: int) -> NDArray[np.int64]:
    """Whole numbers [...] from 0 to `most`, or ValueError."""
    counts = np.asarray(value)
    if counts.dtype.kind not in 'iu' or ((counts < 0) | (counts > most)).any():
        raise ValueError(f'{name} {value}: write whole numbers from 0 to the chunk size, {most}')
    return counts.astype(np.int64)
