"""Plays timed joint trajectories: what the arm's target is at any moment.

Knows names and times. Does not know the simulator or ROS; its clock is whatever `now` says, in
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TICK = 1e-9  # s; moments closer than this are the same


class TrajectoryPlayer:
    """Interpolates from the present target through the newest trajectory's points; then holds.

    joints: names in the order of `target`'s values. start: float [J], the target until the first
    trajectory. Raises ValueError for a start of another length or not finite.
    """

    def __init__(self, joints: Sequence[str], start: np.ndarray) -> None:
        self.joints = tuple(joints)
        start = np.array(start, np.float64)
        if start.shape != (len(self.joints),) or not np.isfinite(start).all():
            raise ValueError(f'start is not {len(self.joints)} finite numbers: {start}')
        self._plan = np.array([-np.inf]), start[None]  # times [n], points [n, J]

    def load(
        self, names: Sequence[str], points: np.ndarray, times: np.ndarray, now: float
    ) -> None:
        """Takes points [n, J], columns in the order of `names`, due at times [n] s.

        It goes on from target(now). Of the trajectory played so far, what is due before times[0]
        stays; new points due before `now` are skipped. Raises ValueError, and changes nothing,
        when names are not the joints, shapes differ, a value is not finite, times do not increase,
        or all of it is past.
        """
        if sorted(names) != sorted(self.joints):
            raise ValueError(f'a trajectory of {list(names)} for joints {list(self.joints)}')
        points, times = np.asarray(points, np.float64), np.asarray(times, np.float64)
        if times.ndim != 1 or not len(times) or points.shape != (len(times), len(self.joints)):
            raise ValueError(
                f'points {points.shape} and times {times.shape} are not '
                f'[n, {len(self.joints)}] and [n], n > 0'
            )
        if not (np.isfinite(points).all() and np.isfinite(times).all()):
            raise ValueError('a trajectory has points or times that are not finite')
        if (np.diff(times) <= 0).any():
            raise ValueError('the times of a trajectory do not increase')
        if times[-1] < now:
            raise ValueError(
                f'all of the trajectory is past: it ended {now - times[-1]:.3f} s ago'
            )
        points = points[:, [list(names).index(joint) for joint in self.joints]]
        played, played_points = self._plan
        keep, due = (played > now) & (played < times[0]), times > now
        self._plan = (
            np.concatenate([[now], played[keep], times[due]]),
            np.concatenate([self.target(now)[None], played_points[keep], points[due]]),
        )

    def target(self, now: float) -> np.ndarray:
        """The joints' targets, float64 [J]; outside the plan's times its first or last point."""
        times, points = self._plan
        after = int(np.searchsorted(times, now))
        if after in (0, len(times)):
            return points[min(after, len(times) - 1)].copy()
        before = after - 1
        share = (now - times[before]) / (times[after] - times[before])
        return (1 - share) * points[before] + share * points[after]

    def planned(self, times: np.ndarray) -> np.ndarray:
        """The targets at times [n], float64 [n, J]; NaN outside the plan's times."""
        due, points = self._plan
        if len(due) < 2:
            return np.full((len(times), points.shape[1]), np.nan)
        times = np.where(np.abs(times - due[-1]) < TICK, due[-1], times)
        columns = (np.interp(times, due, column, np.nan, np.nan) for column in points.T)
        return np.stack(list(columns), axis=1)
