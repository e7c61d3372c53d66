"""How many segments each layer computes again.

Knows shares. Does not know which segments.

Source: KEEP, section 4.2: the first layer computes all, later ones a decreasing share r_i, and a
segment that one layer drops is dropped for good. The paper does not give its shares: they are
parameters here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_kv.memory.importance import share


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
        if not 1 / layers <= average <= 1:
            raise ValueError(
                f'a recompute ratio of {average}: {layers} layers reach [{1 / layers:.4g}, 1]'
            )
        low, high = 0.0, 1.0
        while (middle := (low + high) / 2) not in (low, high):
            below = cls.geometric(layers, middle).average < average
            low, high = (middle, high) if below else (low, middle)
        return cls.geometric(layers, high)

    @property
    def average(self) -> float:
        """The paper's r: share of all layers' segments."""
        return math.fsum(self.ratios) / len(self.ratios)

    def counts(self, segments: int) -> tuple[int, ...]:
        """Segments that each layer computes."""
        return tuple(share(ratio, segments) for ratio in self.ratios)
