"""A tabletop that follows chunks of actions in simulated time, as the live robot in real time.

Knows the table and its trajectory player. Does not know ROS, tasks or who planned the chunk.
"""

from __future__ import annotations

import numpy as np

from embodied_kv.demo.sim.player import TrajectoryPlayer
from embodied_kv.demo.sim.tabletop import JOINTS, Tabletop

SET_POINT = 0.01  # s between two set-points of the arm


class Rollout:
    """A table, the player of its trajectories, and the time since the start of the scene.

    path: the joints [7] after every set-point.
    """

    def __init__(self, table: Tabletop) -> None:
        self.table = table
        self.restart()

    def restart(self) -> None:
        """After the table's reset: time 0, no trajectory."""
        self.time = 0.0
        self.path: list[np.ndarray] = []
        self._player = TrajectoryPlayer(JOINTS, self.table.state())

    def follow(self, actions: np.ndarray, start: float, dt: float) -> None:
        """From now on, actions [n, 7] of which the i-th is due at start + i * dt seconds.

        Raises ValueError for actions that are all past, or not finite.
        """
        self._player.load(JOINTS, actions, start + dt * np.arange(len(actions)), self.time)

    def ahead(self, times: np.ndarray) -> np.ndarray:
        """Targets [n, 7] of the arm at times [n] s from now on; NaN where nothing is planned."""
        return self._player.planned(times)

    def target(self, moment: float) -> np.ndarray:
        """Where the arm is sent at a moment, [7]; where it stands if nothing is planned then."""
        return self._player.target(moment)

    def advance(self, seconds: float) -> None:
        """Simulate so long, with a set-point every 10 ms."""
        parts = max(1, round(seconds / SET_POINT))
        for _ in range(parts):
            self.time += seconds / parts
            self.table.command(self._player.target(self.time))
            self.table.step(seconds / parts)
            self.path.append(self.table.state())
