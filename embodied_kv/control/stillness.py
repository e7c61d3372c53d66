"""How long an arm has stood still, by its measured positions.

This module knows numbers in SI units. It does not know why the arm stands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEAR = 0.01  # s at the velocity limit: a joint that stays within this distance stands


class StandstillTimer:
    """Compares positions with the place where the arm moved last.

    Args:
        velocity: Velocity limits [joints] (rad/s or m/s).
    """

    def __init__(self, velocity: NDArray[np.float64]) -> None:
        self._near = NEAR * velocity
        self._place: NDArray[np.float64] | None = None
        self._since = 0.0

    def seconds(self, positions: NDArray[np.float64] | None, now: float) -> float:
        """Return for how long (s) every joint that is known has stayed near its place.

        Args:
            positions: Measured positions [joints] (rad or m), NaN where unknown; None where no
                position is known, which counts as a motion.
            now: The moment of the call (s), on a clock that does not go back.
        """
        if positions is None or np.isnan(positions).all():
            self._place, self._since = None, now
        elif self._has_moved(positions):
            self._place, self._since = positions.copy(), now
        return now - self._since

    def _has_moved(self, positions: NDArray[np.float64]) -> bool:
        if self._place is None or (np.isnan(positions) != np.isnan(self._place)).any():
            return True
        return bool((np.abs(positions - self._place) > self._near).any())  # NaN is no motion
