"""A tabletop that follows action chunks in simulated time, like the live robot in real time."""

from __future__ import annotations

import numpy as np

from embodied_kv.demo.sim.player import TrajectoryPlayer
from embodied_kv.demo.sim.tabletop import JOINTS, Tabletop

SET_POINT = 0.01  # s between two set-points of the arm


class Rollout:
    """A table, its trajectory player, and the time since the start of the scene.

    path: the joints [7] after every set-point.
    """

    def __init__(self, table: Tabletop) -> None:
        self.table = table
        self.restart()

    def restart(self) -> None:
        """Restart at time 0 without a trajectory, after a reset of the table."""
        self.time = 0.0
        self.path: list[np.ndarray] = []
        self.player = TrajectoryPlayer(JOINTS, self.table.state())

    def follow(self, actions: np.ndarray, start: float, dt: float) -> None:
        """Follow actions [n, 7]; the i-th is due at start + i * dt seconds.

        Raises ValueError for actions that are all past, or not finite.
        """
        self.player.load(JOINTS, actions, start + dt * np.arange(len(actions)), self.time)

    def advance(self, seconds: float) -> None:
        """Simulate with a set-point every 10 ms."""
        parts = max(1, round(seconds / SET_POINT))
        for _ in range(parts):
            self.time += seconds / parts
            self.table.command(self.player.target(self.time))
            self.table.step(seconds / parts)
            self.path.append(self.table.state())
