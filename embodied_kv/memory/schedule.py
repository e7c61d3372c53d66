"""Shares of the segments that each layer recomputes.

Source: KEEP, section 4.2: the first layer computes all segments, later layers a decreasing share
r_i, and a segment that one layer drops stays dropped. The paper does not state its shares;
SCHEDULES are three ways to spread the same mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_kv.memory.segment import check_choice

# The same share in each layer but the first; from 1.5 to 0.5 times that share (as the gradual
# filtering of CacheBlend, section 4.3 of that paper); decay^i in layer i.
SCHEDULES = ('even', 'gradual', 'falling')


@dataclass(frozen=True)
class Schedule:
    """The share of the segments that each layer computes: 1 first, then never increasing."""

    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a >= b for a, b in zip(self.ratios, self.ratios[1:], strict=False))
        if not self.ratios or self.ratios[0] != 1 or not falling or not self.ratios[-1] >= 0:
            raise ValueError(f'ratios must start at 1 and fall to >= 0 (got {self.ratios})')

    @property
    def average(self) -> float:
        """Return the paper's r: the mean over the layers."""
        return math.fsum(self.ratios) / len(self.ratios)


def named_schedule(name: str, layers: int, average: float) -> Schedule:
    """Return the schedule of that name and mean share.

    Raises:
        ValueError: The name is unknown, or the layers cannot reach the mean: the first layer alone
            makes 1 / layers.
    """
    check_choice('recompute_schedule', name, SCHEDULES)
    if not 1 / layers <= average <= 1:
        raise ValueError(
            f'recompute_ratio must be in [{1 / layers:.4g}, 1] with {layers} layers '
            f'(got {average})'
        )
    if name == 'falling':
        low, high = 0.0, 1.0
        while (middle := (low + high) / 2) not in (low, high):
            below = _geometric(layers, middle).average < average
            low, high = (middle, high) if below else (low, middle)
        return _geometric(layers, high)
    even = round((layers * average - 1) / max(1, layers - 1), 12)  # 0.16, not the float below it
    more = min(even / 2, 1 - even) if name == 'gradual' and layers > 2 else 0.0
    parts = (i / max(1, layers - 2) for i in range(layers - 1))
    return Schedule((1.0, *(even + more + (even - more - (even + more)) * part for part in parts)))


def _geometric(layers: int, decay: float) -> Schedule:
    return Schedule(tuple(decay**i for i in range(layers)))


def share(ratio: float, segments: int) -> int:
    """Return ratio * segments, rounded half up after removal of the float error of the ratio."""
    return math.floor(round(ratio * segments, 9) + 0.5)
