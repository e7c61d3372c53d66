"""A box that the tip of an arm must not leave.

**Warning**: the workspace is not a safety-rated function. It checks one frame, so that every other
part of the arm may leave the box, and it does not check collisions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.control.kinematics import Kinematics
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion

FINE = 0.005  # s between two checks of the tip position
_SAME = 1e-9  # m


class Workspace:
    """A box for the tip of an arm; motions end before the tip leaves it.

    Args:
        robot_description: The URDF.
        tip: A link of the URDF.
        lower, upper: [3] Corners (m) of the box in the frame of the root link.
        limits: The limits of the joints that move.
        fixed: Positions (rad or m) of other joints by name; the rest stay at 0.

    Raises:
        ValueError: The box is empty, or `Kinematics` raises it.
    """

    def __init__(
        self,
        robot_description: str,
        tip: str,
        lower: ArrayLike,
        upper: ArrayLike,
        limits: Limits,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        self._lower, self._upper = np.asarray(lower, float), np.asarray(upper, float)
        if self._lower.shape != (3,) or not (self._lower < self._upper).all():
            raise ValueError(
                'workspace must be a box with lower < upper in x, y and z (got '
                f'{lower} to {upper}); write them in m'
            )
        self._limits = limits
        self._kinematics = Kinematics(robot_description, tip, limits.joints, fixed)

    def tips(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places (m) [n, 3] of the tip for joint positions [n, joints]."""
        return self._kinematics.places(positions)

    def confine(self, motion: Motion) -> Motion | None:
        """Return the motion, cut so that the tip stays in the box.

        The result is None if the tip would leave the box even if the arm brakes at once. A tip
        that is outside already may stay or come nearer to the box.
        """
        leaves = self._leaves(motion)
        if leaves is None:
            return motion
        for node in range(int(np.searchsorted(motion.times, leaves)) - 1, -1, -1):
            shorter = motion.until(node, self._limits)
            if self._leaves(shorter) is None:
                return shorter
        return None

    def _leaves(self, motion: Motion) -> float | None:
        """Return the first moment at which the tip is outside and moves outwards, else None."""
        count = 1 + int(np.ceil(motion.duration / FINE))
        times = np.unique(np.append(motion.times, np.linspace(0, motion.duration, count)))
        tips = self.tips(motion.sample(times)[0])
        outside = np.maximum(np.maximum(tips - self._upper, self._lower - tips), 0.0)
        outside = np.linalg.norm(outside, axis=1)
        if not np.isfinite(outside).all():  # the position of the tip is unknown
            return 0.0
        worse = np.flatnonzero(outside[1:] > np.maximum(outside[:-1], 0.0) + _SAME)
        return None if not len(worse) else float(times[worse[0] + 1])
