"""How a trajectory controller joins the points that it receives.

A controller executes a cubic from the measured arm to the first point. `Join` finds the points
that this cubic reaches within JOINS times the velocity limits and HARSH times the acceleration
limits. A controller at a speed of 10 % executes the cubic with 1 % of its acceleration. A paused
controller executes it at the speed with which it resumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits

JOINS = 1.05  # times the velocity limit that a controller may need to join a motion
HARSH = 2.0  # times the acceleration limit that a controller may need to join a motion
WAITS = np.arange(0.004, 0.2, 0.004)  # s by which a trajectory may be delayed to be joined


@dataclass(frozen=True, eq=False)
class Join:
    """The cubics that begin at the arm.

    position, velocity: of the arm, float64 [joints]. free: joints that join without a limit, bool
    [joints]. speed: speed scaling of the controller, more than 0.
    """

    position: NDArray[np.float64]
    velocity: NDArray[np.float64]
    limits: Limits
    free: NDArray[np.bool_]
    speed: float

    @classmethod
    def of(
        cls,
        measured: Measured,
        now: float,
        limits: Limits,
        allowed: NDArray[np.float64],
        speed: float,
    ) -> Join:
        """Return the cubics that begin at `now`.

        allowed: tracking error (rad or m), float64 [joints]; where it is infinite, as for a
        gripper, a joint joins without a limit, as does one that is moved by velocity. speed: speed
        scaling of the controller, 0 to 1.
        """
        velocity = np.nan_to_num(measured.velocity if measured.recent is None else measured.recent)
        position = measured.position + velocity * max(0.0, now - measured.moment)
        free = limits.by_velocity | np.isinf(allowed)
        return cls(position, velocity, limits, free, speed or 1.0)

    def first(
        self,
        times: NDArray[np.float64],
        points: NDArray[np.float64],
        velocities: NDArray[np.float64],
    ) -> int | None:
        """Return the first point that can be joined; None if none can.

        times: s from now, float64 [n]. points, velocities: float64 [n, joints].
        """
        fits = self._fit(times, points, velocities)
        return int(fits.argmax()) if fits.any() else None

    def delay(
        self, time: float, point: NDArray[np.float64], velocity: NDArray[np.float64]
    ) -> float | None:
        """Return the shortest delay (s) with which a point can be joined; None if none is."""
        fits = self._fit(time + WAITS, point[None], velocity[None])
        return float(WAITS[fits.argmax()]) if fits.any() else None

    def shortest(self, point: NDArray[np.float64]) -> float:
        """Return the time (s) that a cubic from rest to rest at a point needs at least."""
        far = np.where(self.free, 0.0, np.abs(point - self.position))
        needed = np.maximum(
            1.5 * far / self.limits.velocity,
            np.sqrt(6 * far / (HARSH * self.limits.acceleration)),
        )
        return float(np.nanmax(needed))

    def _fit(
        self,
        times: NDArray[np.float64],
        points: NDArray[np.float64],
        ends: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """Return which cubics, which end after `times` with velocities `ends`, fit: bool [n]."""
        lasts = times[:, None]
        mean = (points - self.position) / lasts
        fastest = np.abs(1.5 * mean - (self.velocity + ends) / 4)  # in the middle
        bends = 6 * mean - 4 * self.velocity - 2 * ends, 6 * mean - 2 * self.velocity - 4 * ends
        harshest = np.maximum(*np.abs(bends)) / lasts  # at the ends
        gentle = HARSH * self.limits.acceleration / self.speed**2
        exceeds = (fastest > JOINS * self.limits.velocity) | (harshest > gentle)
        return ~(exceeds & ~self.free).any(axis=1)
