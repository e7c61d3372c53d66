"""Cost of one decision of a scheduler on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.fleet.runs import POLICIES
from embodied_kv.fleet.schedulers import Waiting, skip


def decisions(counts: Sequence[int] = (10, 100, 1000), repeats: int = 200) -> list[dict]:
    """Return the microseconds of a decision by number of waiting robots: median and P99."""
    rows = []
    for name, policy in POLICIES.items():
        row = dict(scheduler=name)
        for count in counts:
            waiting, rng = _waiting(count), np.random.default_rng(0)
            times = []
            for i in range(repeats):
                for j in rng.integers(count, size=8):
                    waiting[j].arrived = 100.0 + i
                began = time.perf_counter()
                skip(waiting, policy.order(waiting, 100.0 + i)[:8])
                times.append((time.perf_counter() - began) * 1e6)
            row[f'{count}_us'], row[f'{count}_p99'] = np.percentile(times, (50, 99)).tolist()
        rows.append(row)
    return rows


def _waiting(count: int) -> list[Waiting]:
    rng = np.random.default_rng(0)
    numbers = rng.random((count, 4)).tolist()
    return [
        Waiting(f'r{i}', 't', 1, 90 + 10 * a, 50 * b, 20 * c, 10 * a, 0.3 + 1.3 * d)
        for i, (a, b, c, d) in enumerate(numbers)
    ]
