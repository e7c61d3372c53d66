"""A box that the tip of an arm may not leave, whatever its joints may.

Knows a box and the kinematics of the tip. Does not know self-collision, nor any part of the arm
but the tip: this is a fence and no safety-rated device.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.control.kinematics import Kinematics
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion

FINE = 0.005  # s between two looks at the tip
_SAME = 1e-9  # m


class Workspace:
    """Ends motions before the tip leaves the box.

    robot_description: a URDF. tip: a link of it. lower, upper: [3], m, in the frame of its root
    link. limits: whose joints are moved; others stay at 0, or where `fixed` says. Raises
    ValueError as `Kinematics`, and for an empty box.
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
            raise ValueError(f'the workspace {lower} to {upper} is no box: write x, y and z in m')
        self._limits = limits
        self._kinematics = Kinematics(robot_description, tip, limits.joints, fixed)

    def tips(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places (m) [n, 3] of the tip for joint positions [n, joints]."""
        return self._kinematics.places(positions)

    def confine(self, motion: Motion) -> Motion | None:
        """The same, or as far as it may go before it must brake.

        None where braking at once would leave the box too. A tip that is outside already may come
        nearer to the box, or stay.
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
        """The first moment at which the tip is outside, and no nearer than before; None: none."""
        count = 1 + int(np.ceil(motion.duration / FINE))
        times = np.unique(np.append(motion.times, np.linspace(0, motion.duration, count)))
        tips = self.tips(motion.sample(times)[0])
        outside = np.maximum(np.maximum(tips - self._upper, self._lower - tips), 0.0)
        outside = np.linalg.norm(outside, axis=1)
        if not np.isfinite(outside).all():  # where the tip is, is unknown
            return 0.0
        worse = np.flatnonzero(outside[1:] > np.maximum(outside[:-1], 0.0) + _SAME)
        return None if not len(worse) else float(times[worse[0] + 1])
