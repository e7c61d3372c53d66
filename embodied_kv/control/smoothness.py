"""How smoothly an arm is moved: jerk, path length, and the steps where chunks follow one another.

Knows joint targets over time. Does not know limits, motions or what the arm made of them. Joints
count alike, so whoever mixes rad and m, or wants no gripper in it, passes the columns that belong
together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Smoothness:
    """Of targets over time.

    jerk_rms, jerk_max: over all joints and moments, rad/s³ or m/s³. path_length: of all joints
    together, rad or m.
    """

    jerk_rms: float
    jerk_max: float
    path_length: float


@dataclass(frozen=True)
class Seam:
    """Where a chunk takes over: the largest difference of any joint between what both say.

    step: of the target, rad or m. velocity: of its velocity, per s.
    """

    step: float
    velocity: float


@dataclass(frozen=True, eq=False)
class Targets:
    """What a chunk says: actions [n, joints], due at began + i * dt, and straight between them.

    Before the first it says the first, after the last it says to stand there. Raises ValueError.
    """

    actions: ArrayLike
    began: float
    dt: float

    def __post_init__(self) -> None:
        object.__setattr__(self, 'actions', _checked(self.actions))
        if not (0 < self.dt < np.inf and np.isfinite(self.began)):
            raise ValueError(f'targets from {self.began} s in steps of {self.dt} s: no such times')

    def at(self, moment: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and velocity [joints]; at an action the velocity that follows it."""
        last = len(self.actions) - 1
        place = (moment - self.began) / self.dt
        row = int(np.clip(np.floor(place + 1e-9), 0, last))
        if place < -1e-9 or row == last:
            return self.actions[row], np.zeros_like(self.actions[row])
        way = self.actions[row + 1] - self.actions[row]
        return self.actions[row] + (place - row) * way, way / self.dt


def smoothness(positions: ArrayLike, rate: float) -> Smoothness:
    """Of targets [n, joints] that are sent `rate` times a second. Raises ValueError.

    The jerk is the third difference of the targets; with fewer than 4 there is none.
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


def seam(old: Targets, new: Targets, moment: float) -> Seam:
    """Where `new` takes over from `old`, at a moment, s. Raises ValueError for unlike joints."""
    if old.actions.shape[1] != new.actions.shape[1]:
        raise ValueError(
            f'{old.actions.shape[1]} joints cannot be followed by {new.actions.shape[1]}'
        )
    (was, speed), (becomes, speed_after) = old.at(moment), new.at(moment)
    return Seam(float(np.abs(becomes - was).max()), float(np.abs(speed_after - speed).max()))


def _checked(values: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f'targets are [n, joints], at least one: got {list(values.shape)}')
    if not np.isfinite(values).all():
        raise ValueError('targets are not finite')
    return values
