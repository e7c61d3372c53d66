"""Rates and means of the latest events, for diagnostics."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections import deque

from embodied_kv.kv.manager import KvStats


class PeriodMeter:
    """Mean and standard deviation of the latest intervals between events (s)."""

    def __init__(self, window: int = 100) -> None:
        self._intervals: deque[float] = deque(maxlen=window)
        self._last = math.nan

    def tick(self) -> None:
        """Note an event."""
        now = time.monotonic()
        if not math.isnan(self._last):
            self._intervals.append(now - self._last)
        self._last = now

    def restart(self) -> None:
        """Forget all intervals."""
        self._last = math.nan
        self._intervals.clear()

    def values(self) -> dict[str, str]:
        """Return the statistics by name, in ms."""
        intervals = list(self._intervals)
        mean = statistics.fmean(intervals) if intervals else math.nan
        deviation = statistics.pstdev(intervals) if intervals else math.nan
        return {
            'period mean (ms)': f'{mean * 1e3:.2f}',
            'period deviation (ms)': f'{deviation * 1e3:.2f}',
        }


class MeanMeter:
    """Mean of the latest values; NaN before the first."""

    def __init__(self, window: int = 100) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        self._values.append(value)

    def mean(self) -> float:
        values = list(self._values)
        return statistics.fmean(values) if values else math.nan


class RateMeter:
    """Rate at which a count increases."""

    def __init__(self) -> None:
        self._count, self._at = 0, time.monotonic()

    def rate(self, count: int) -> float:
        """Return the rate per second since the last call."""
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._at, 1e-3)
        self._count, self._at = count, now
        return rate


def engine_values(kv: KvStats, tokens_per_second: float) -> dict[str, object]:
    """Return the values of the engine for the diagnostics of each of its nodes."""
    return {
        'rows used': f'{kv.rows - kv.rows_free} of {kv.rows}',
        'leases': kv.leases,
        'streams': f'{kv.streams} of {kv.streams_max}',
        'tokens per second': f'{tokens_per_second:.1f}',
        'compressed prefixes': f'{kv.compressed}, {kv.bytes_saved / 2**20:+.1f} MiB saved',
        'compressed prefixes not made': f'{kv.allocation_failures} without room, '
        f'{kv.scoring_failures} failed',
        'cache used (MiB)': f'{kv.bytes_used / 2**20:.1f} of {kv.bytes / 2**20:.1f}',
    }


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
