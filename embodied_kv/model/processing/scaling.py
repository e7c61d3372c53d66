"""Units to the network's numbers and back: one formula, and what each project puts into it.

Knows statistics of single dims. Does not know what they measure, nor where they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Statistics = Mapping[str, NDArray[np.floating]]
# The statistics that a mode reads: where it begins, and how far it reaches.
READS = {'quantiles': ('q01', 'q99'), 'mean_std': ('mean', 'std')}
# From mode to (gain, shift): quantiles span [-1, 1], a standard deviation is 1.
RANGES = {'quantiles': (2.0, 1.0), 'mean_std': (1.0, 0.0)}
# openpi adds this to every span and deviation, both ways.
OPENPI_EPS = 1e-6
# A joint whose quantiles lie closer than this (rad, m) did not move in the data: it says nothing.
NEAR_CONSTANT = 1e-4


@dataclass(frozen=True, eq=False)
class Scaling:
    """`y = (x - origin) / divisor * gain - shift`, `x = (y + shift) / gain * span + origin`.

    statistics, origin, divisor, span: [dims] or [chunk, dims], of one dtype, which is that of all
    results. mode: 'quantiles' or 'mean_std', which gives gain and shift. Nothing is clamped.
    """

    mode: str
    statistics: Statistics
    origin: NDArray[np.floating]
    divisor: NDArray[np.floating]
    span: NDArray[np.floating]

    @property
    def unit(self) -> NDArray[np.floating]:
        """How far one of the network's units reaches in policy units: [dims] or [chunk, dims]."""
        return self.span / RANGES[self.mode][0]

    def normalise(self, x: ArrayLike) -> NDArray[np.floating]:
        """Policy units [..., dims] -> the network's."""
        gain, shift = RANGES[self.mode]
        return (np.asarray(x, self.origin.dtype) - self.origin) / self.divisor * gain - shift

    def unnormalise(self, y: ArrayLike) -> NDArray[np.floating]:
        """The network's [..., dims] -> policy units."""
        gain, shift = RANGES[self.mode]
        return (np.asarray(y, self.origin.dtype) + shift) / gain * self.span + self.origin


Scale = Callable[[str, Statistics], Scaling]


def lerobot(mode: str, statistics: Statistics, eps: float = 1e-8) -> Scaling:
    """As LeRobot: float32; `eps` for a span of exactly 0, and beside a deviation on the way in.

    processor/normalize_processor.py, `_apply_transform`.
    """
    s = _as(np.float32, statistics)
    low, high = (s[name] for name in READS[mode])
    if mode == 'mean_std':
        return Scaling(mode, s, low, high + np.float32(eps), high)
    span = np.where(high == low, np.float32(eps), high - low)
    return Scaling(mode, s, low, span, span)


def openpi(mode: str, statistics: Statistics) -> Scaling:
    """As openpi: float64, and 1e-6 added to every span and deviation, both ways.

    transforms.py, `Normalize` and `Unnormalize`.
    """
    s = _as(np.float64, statistics)
    low, high = (s[name] for name in READS[mode])
    span = (high if mode == 'mean_std' else high - low) + OPENPI_EPS
    return Scaling(mode, s, low, span, span)


def own(mode: str, statistics: Statistics) -> Scaling:
    """As our own policies were trained: float32 quantiles, openpi's epsilon.

    A near-constant joint reads -1, as q01 does, and is at q01, whatever the network says.
    """
    s = _as(np.float32, statistics)
    low, high = (s[name] for name in READS[mode])
    still = high - low < NEAR_CONSTANT
    span = high - low + np.float32(OPENPI_EPS)
    divisor = np.where(still, np.float32(np.inf), span)
    return Scaling(mode, s, low, divisor, np.where(still, np.float32(0), span))


def _as(dtype: type, statistics: Statistics) -> Statistics:
    return {name: np.asarray(values, dtype) for name, values in statistics.items()}
