"""Rates and means of the latest events, for diagnostics.

Knows numbers only; it stays in `nodes` because diagnostics alone use it.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections import deque

from embodied_kv.kv.manager import KvStats


class PeriodMeter:
    """How regularly something happens: mean and deviation of the latest intervals, s."""

    def __init__(self, window: int = 100) -> None:
        self._intervals: deque[float] = deque(maxlen=window)
        self._last = math.nan

    def tick(self) -> None:
        """It happened."""
        now = time.monotonic()
        if not math.isnan(self._last):
            self._intervals.append(now - self._last)
        self._last = now

    def restart(self) -> None:
        """The next interval begins with the next tick."""
        self._last = math.nan
        self._intervals.clear()

    def values(self) -> dict[str, str]:
        intervals = list(self._intervals)
        mean = statistics.fmean(intervals) if intervals else math.nan
        deviation = statistics.pstdev(intervals) if intervals else math.nan
        return {
            'period mean (ms)': f'{mean * 1e3:.2f}',
            'period deviation (ms)': f'{deviation * 1e3:.2f}',
        }


class MeanMeter:
    """The mean of the latest values; NaN before the first."""

    def __init__(self, window: int = 100) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        self._values.append(value)

    def mean(self) -> float:
        values = list(self._values)
        return statistics.fmean(values) if values else math.nan


class RateMeter:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._count, self._at = 0, time.monotonic()

    def rate(self, count: int) -> float:
        """Per second, since the last call."""
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._at, 1e-3)
        self._count, self._at = count, now
        return rate


def engine_values(kv: KvStats, tokens_per_second: float) -> dict[str, object]:
    """What every node on an engine reports of it."""
    return {
        'rows used': f'{kv.rows - kv.rows_free} of {kv.rows}',
        'leases': kv.leases,
        'streams': f'{kv.streams} of {kv.streams_max}',
        'tokens per second': f'{tokens_per_second:.1f}',
        'compressed prefixes': f'{kv.compressed}, {kv.bytes_saved / 2**20:+.1f} MiB saved',
        'compression failures': kv.scoring_failures,
        'cache used (MiB)': f'{kv.bytes_used / 2**20:.1f} of {kv.bytes / 2**20:.1f}',
    }


def resident_bytes() -> int:
    """Memory of this process that lies in RAM."""
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
