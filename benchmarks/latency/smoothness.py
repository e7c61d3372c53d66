"""Smoothness of the motion of an arm: jerk and path length.

Knows joint targets over time. Does not know limits, motions or how the arm executed them. All
columns count alike: to avoid mixing rad and m, or to leave out the gripper, pass only the columns
that belong together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Smoothness:
    """Smoothness of targets over time.

    jerk_rms, jerk_max: over all joints and moments, rad/s³ or m/s³. path_length: of all joints
    together, rad or m.
    """

    jerk_rms: float
    jerk_max: float
    path_length: float


def smoothness(positions: ArrayLike, rate: float) -> Smoothness:
    """Return the smoothness of targets [n, joints] that are sent `rate` times a second.

    The jerk is the third difference of the targets; with fewer than 4 targets it is 0. Raises
    ValueError for invalid targets or an invalid rate.
    """
    positions = _checked(positions)
    if not 0 < rate < np.inf:
        raise ValueError(f'a rate of {rate} per second: it must be a finite number above 0')
    jerk = np.abs(np.diff(positions, n=3, axis=0)) * rate**3
    ways = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    return Smoothness(
        float(np.sqrt((jerk**2).mean())) if jerk.size else 0.0,
        float(jerk.max(initial=0.0)),
        float(ways.sum()),
    )


def _checked(values: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f'targets are [n, joints], at least one: got {list(values.shape)}')
    if not np.isfinite(values).all():
        raise ValueError('targets are not finite')
    return values
