"""How many segments each layer computes again.

Knows shares. Does not know which segments.

Source: KEEP, section 4.2: the first layer computes all, later ones a decreasing share r_i, and a
segment that one layer drops is dropped for good. The paper does not give its shares: `SCHEDULES`
are three ways to spread the same mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """ratios: of the segments, per layer; the first is 1, none is larger than the one before.

    Raises ValueError for other ratios.
    """

    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a >= b for a, b in zip(self.ratios, self.ratios[1:], strict=False))
        if not self.ratios or self.ratios[0] != 1 or not falling or not self.ratios[-1] >= 0:
            raise ValueError(f'{self.ratios}: shares start at 1 and fall, none below 0')

    @classmethod
    def linear(cls, layers: int, second: float, last: float) -> Schedule:
        """1, then from `second` down to `last` in equal parts; both equal is one share for all."""
        rest = layers - 1
        parts = (i / max(1, rest - 1) for i in range(rest))
        return cls((1.0, *(second + (last - second) * part for part in parts)))

    @classmethod
    def geometric(cls, layers: int, decay: float, least: float = 0.0) -> Schedule:
        """decay^i in layer i (from 0), none below `least`."""
        return cls(tuple(max(decay**i, least) for i in range(layers)))

    @classmethod
    def of_average(cls, layers: int, average: float) -> Schedule:
        """The geometric one with this average.

        Raises ValueError for one that cannot be: the first layer alone makes 1 / layers.
        """
        _check_average(layers, average)
        low, high = 0.0, 1.0
        while (middle := (low + high) / 2) not in (low, high):
            below = cls.geometric(layers, middle).average < average
            low, high = (middle, high) if below else (low, middle)
        return cls.geometric(layers, high)

    @classmethod
    def even(cls, layers: int, average: float) -> Schedule:
        """All in the first layer, one share in each other one; raises as `of_average`."""
        return cls._around(layers, average, 0.0)

    @classmethod
    def gradual(cls, layers: int, average: float) -> Schedule:
        """From half as much again as the even share down to half of it, where 1 leaves room.

        As CacheBlend's gradual filtering (section 4.3 of that paper); raises as `of_average`.
        """
        return cls._around(layers, average, 0.5)

    @classmethod
    def _around(cls, layers: int, average: float, part: float) -> Schedule:
        _check_average(layers, average)
        even = (layers * average - 1) / max(1, layers - 1)
        even = round(even, 12)  # 0.16 and not the float below
        more = min(part * even, 1 - even) if layers > 2 else 0.0
        return cls.linear(layers, even + more, even - more)

    @property
    def average(self) -> float:
        """The paper's r: share of all layers' segments."""
        return math.fsum(self.ratios) / len(self.ratios)

    def counts(self, segments: int) -> tuple[int, ...]:
        """Segments that each layer computes."""
        return tuple(share(ratio, segments) for ratio in self.ratios)


SCHEDULES: dict[str, Callable[[int, float], Schedule]] = dict(
    even=Schedule.even, gradual=Schedule.gradual, falling=Schedule.of_average
)


def named_schedule(name: str, layers: int, average: float) -> Schedule:
    """Raises ValueError that lists the names, or for an average that is out of reach."""
    if name not in SCHEDULES:
        raise ValueError(f'no schedule {name!r}; there are: {", ".join(SCHEDULES)}')
    return SCHEDULES[name](layers, average)


def share(ratio: float, segments: int) -> int:
    """ratio * segments to the nearest, halves up, for the ratio that was written.

    So the mean over the layers of what is computed is about the mean of the ratios.
    """
    return math.floor(round(ratio * segments, 9) + 0.5)


def _check_average(layers: int, average: float) -> None:
    if not 1 / layers <= average <= 1:
        raise ValueError(
            f'a recompute ratio of {average}: {layers} layers reach [{1 / layers:.4g}, 1]'
        )
