"""Interpolation of timed joint trajectories: the target of the arm at any moment.

The clock is the `now` of the caller, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TICK = 1e-9  # s; moments closer than this are equal


class TrajectoryPlayer:
    """Interpolates from the present target through the points of the newest trajectory.

    The last target is held. joints: names in the order of the values of `target`. start: float
    [J], the target until the first trajectory. Raises ValueError for an invalid start.
    """

    def __init__(self, joints: Sequence[str], start: np.ndarray) -> None:
        self.joints = tuple(joints)
        start = np.array(start, np.float64)
        if start.shape != (len(self.joints),) or not np.isfinite(start).all():
            raise ValueError(f'start must be {len(self.joints)} finite numbers (got {start})')
        self._plan = np.array([-np.inf]), start[None]  # times [n], points [n, J]

    def load(
        self, names: Sequence[str], points: np.ndarray, times: np.ndarray, now: float
    ) -> None:
        """Continue with points [n, J], columns in the order of `names`, due at times [n] s.

        The new trajectory starts from target(now). Points of the former one that are due before
        times[0] remain; new points due before `now` are skipped. Raises ValueError and changes
        nothing for other names or shapes, values that are not finite, times that do not increase,
        or a trajectory in the past.
        """
        if sorted(names) != sorted(self.joints):
            raise ValueError(f'joint names must be {list(self.joints)} (got {list(names)})')
        points, times = np.asarray(points, np.float64), np.asarray(times, np.float64)
        if times.ndim != 1 or not len(times) or points.shape != (len(times), len(self.joints)):
            raise ValueError(
                f'points and times must be [n, {len(self.joints)}] and [n], n > 0 '
                f'(got {points.shape} and {times.shape})'
            )
        if not (np.isfinite(points).all() and np.isfinite(times).all()):
            raise ValueError('points and times must be finite')
        if (np.diff(times) <= 0).any():
            raise ValueError('times must increase')
        if times[-1] < now:
            raise ValueError(
                f'the trajectory must not be past (its end is {now - times[-1]:.3f} s ago)'
            )
        points = points[:, [list(names).index(joint) for joint in self.joints]]
        played, played_points = self._plan
        keep, due = (played > now) & (played < times[0]), times > now
        self._plan = (
            np.concatenate([[now], played[keep], times[due]]),
            np.concatenate([self.target(now)[None], played_points[keep], points[due]]),
        )

    def target(self, now: float) -> np.ndarray:
        """Return the targets float64 [J]; outside the plan its first or last point."""
        times, points = self._plan
        after = int(np.searchsorted(times, now))
        if after in (0, len(times)):
            return points[min(after, len(times) - 1)].copy()
        before = after - 1
        share = (now - times[before]) / (times[after] - times[before])
        return (1 - share) * points[before] + share * points[after]

    def planned(self, times: np.ndarray) -> np.ndarray:
        """Return the targets at times [n], float64 [n, J]; NaN outside the plan."""
        due, points = self._plan
        if len(due) < 2:
            return np.full((len(times), points.shape[1]), np.nan)
        times = np.where(np.abs(times - due[-1]) < TICK, due[-1], times)
        columns = (np.interp(times, due, column, np.nan, np.nan) for column in points.T)
        return np.stack(list(columns), axis=1)
