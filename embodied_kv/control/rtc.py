"""Real-time chunking: a chunk that is being computed continues the chunk that is executed.

The leftover actions are the rest of the running chunk: row i is due i * dt after the new
observation. While the new chunk is computed, the first d of these rows are executed; d is the
delay. So the new chunk is bound to these rows fully, and to the following ones with decreasing
weight up to the horizon s.

Source: Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies".
Their code calls d and s the start and the end of prefix attention. LeRobot uses the same weights.
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
WINDOW = 10  # latencies that are kept, as in algorithm 1
_TICK = 1e-9  # s; moments closer than this are the same


def weights(
    delay: ArrayLike, horizon: ArrayLike, chunk_size: int, schedule: str
) -> NDArray[np.float64]:
    """Return the weight of the leftover for each action: float64 [..., chunk size] in [0, 1].

    The weight is 1 for i < d and 0 for i >= s. Between them it is

        linear         w = clip((d - 1 - i) / (s - d + 1) + 1, 0, 1)
        exponential    w (e^w - 1) / (e - 1) of that w
        ones, zeros    1, 0

    Args:
        delay, horizon: d and s, integers [...] from 0 to the chunk size. A delay beyond the
            horizon counts as the horizon.
        chunk_size: Number of actions of a chunk.
        schedule: One of SCHEDULES.

    Raises:
        ValueError: An argument is out of its range.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f'schedule must be one of {", ".join(SCHEDULES)} (got {schedule!r})')
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
    """Return how many actions have passed some seconds after the first one was due: 0 to `most`.

    An action that is due at exactly this moment has not passed.

    Raises:
        ValueError: `seconds` is NaN, or dt is not a finite number > 0.
    """
    if math.isnan(seconds) or not 0 < dt < math.inf:
        raise ValueError(
            f'seconds must be a number and dt a finite number > 0 (got {seconds} and {dt})'
        )
    return math.ceil(min(max((seconds - _TICK) / dt, 0.0), most))


class DelayEstimator:
    """Estimator of the delay of the next chunk: the largest of the latest latencies.

    A latency (s) lasts from an observation until its chunk takes over. Frames that were skipped or
    merged, and warm-up, therefore have none. One thread calls `observe`; any thread may read.

    Args:
        dt: Time (s) between two actions.
        chunk_size: Number of actions of a chunk.
        allowed: Time (s) from an observation to the deadline of its chunk, which is expected
            before the first latency is known.
        window: Number of latencies that are kept.
    """

    def __init__(self, dt: float, chunk_size: int, allowed: float, window: int = WINDOW) -> None:
        self.dt, self.chunk_size, self.allowed, self._window = dt, chunk_size, allowed, window
        self._latest: tuple[float, ...] = ()  # replaced, never changed

    def observe(self, latency: float) -> None:
        """Add the latency (s) of a chunk that has taken over.

        A negative or infinite latency, as after a jump of the clock, is ignored.
        """
        if 0 <= latency < math.inf:
            self._latest = (*self._latest, latency)[-self._window :]

    @property
    def latency(self) -> float:
        """Return the latency (s) of the chunk that took over last; NaN before the first."""
        return self._latest[-1] if self._latest else math.nan

    def expected(self, age: float) -> int:
        """Return how many actions will have passed when a chunk that starts now takes over.

        The result is at most the chunk size - 1, so that one action is always new.

        Args:
            age: Time (s) since its observation.
        """
        latency = max(self._latest, default=self.allowed)
        return passed(max(latency, age), self.dt, self.chunk_size - 1)


@dataclass(frozen=True)
class RealTimeChunking:
    """Configuration and delay estimate of real-time chunking for one arm.

    Args:
        delays: The delay estimator.
        horizon: s, as in `weights`; it ends where the leftover ends.
        schedule: As in `weights`.
    """

    delays: DelayEstimator
    horizon: int
    schedule: str = EXPONENTIAL

    @classmethod
    def of(
        cls, config: EngineConfig, model: ModelConfig, allowed: float
    ) -> RealTimeChunking | None:
        """Return the configuration by the parameters of an engine; None if `rtc` is off.

        allowed: as in `DelayEstimator`.
        """
        if config.rtc == 'off':
            return None
        delays = DelayEstimator(model.action_dt, model.chunk_size, allowed)
        return cls(delays, config.horizon(model.chunk_size), config.rtc_schedule)

    def guide(self, leftover: NDArray[np.float64] | None, age: float) -> Guide | None:
        """Return the action prefix for a chunk that starts now; None without a leftover.

        The delay does not exceed the leftover: after its end the arm comes to rest, which does not
        bind the chunk.

        Args:
            leftover: float64 [chunk size, joints], NaN after its end.
            age: Time (s) since the observation.
        """
        if leftover is None:
            return None
        known = int(np.isfinite(leftover).all(axis=1).sum())
        delay, end = min(self.delays.expected(age), known), min(self.horizon, known)
        return Guide(leftover, delay, weights(delay, end, len(leftover), self.schedule))

    def report(self) -> dict[str, object]:
        """Return the values for diagnostics."""
        return {
            'latency (ms)': f'{self.delays.latency * 1e3:.0f}',
            'delay of the next chunk (actions)': self.delays.expected(0.0),
        }


def _counts(name: str, value: ArrayLike, most: int) -> NDArray[np.int64]:
    """Return integers [...] from 0 to `most`. Raises ValueError."""
    counts = np.asarray(value)
    if counts.dtype.kind not in 'iu' or ((counts < 0) | (counts > most)).any():
        raise ValueError(f'{name} must be integers from 0 to the chunk size {most} (got {value})')
    return counts.astype(np.int64)
