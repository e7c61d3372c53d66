"""The world of a fleet that is measured: a tabletop for each robot.

Knows tasks and simulated time. Does not know what acts, or when.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.demo.sim.scene import CAMERAS
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World


class Table(World):
    """A world of evaluation that advances by set-points, and takes a chunk at any of them."""

    def __init__(self, image_size: int, dt: float) -> None:
        super().__init__(image_size, Setting(dt, latency=0.0))
        self._every = round(dt / SET_POINT)  # set-points between two actions, and two judgements

    def begin(self, case: Case) -> None:
        super().begin(case)
        self._moment = 0  # set-points since the begin

    @property
    def instruction(self) -> str:
        return self._instruction

    def follow(self, actions: np.ndarray, began: int) -> None:
        """Execute what is still to come of these actions [n, 7]; row 0 was due at `began`."""
        first = max(0, (self._moment - began) // self._every + 1)
        if first < len(actions):
            due = began + first * self._every
            self._rollout.follow(actions[first:], due * SET_POINT, self.setting.dt)

    def advance(self, moment: int) -> tuple[bool, bool]:
        """Go on to `moment`, in set-points; return whether the task is done, and out of time."""
        while self._moment < moment:
            stop = min(moment, (self._moment // self._every + 1) * self._every)
            self._rollout.advance((stop - self._moment) * SET_POINT)
            self._moment = stop
            if stop % self._every == 0:
                self.period += 1
                self._truth = self._table.truth()
                self._judge.see(self._truth)
        return self._judge.done, self.period >= self._limit


class Tables:
    """One table for each robot, and the cases by number of the task. The owner must close it."""

    def __init__(self, cases: Sequence[Case], robots: int, image_size: int, dt: float) -> None:
        self._cases = cases
        self._tables = [Table(image_size, dt) for _ in range(robots)]

    def begin(self, robot: int, task: int) -> str:
        self._tables[robot].begin(self._cases[task])
        return self._tables[robot].instruction

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        seen = self._tables[robot].look().observation
        return dict(zip(CAMERAS, seen.images, strict=True)), seen.state

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        self._tables[robot].follow(actions, began)

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        return self._tables[robot].advance(moment)

    def close(self) -> None:
        for table in self._tables:
            table.close()
