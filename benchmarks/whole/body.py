"""The part of a robot that survives a kill: the table, the arm's trajectory, and the record.

Knows the scene's clock, which is the schedule's. Does not know what controls the robot. It belongs
to the thread that runs the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.mission.cases import Case
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import Judge
from embodied_kv.planning.mission import MissionEnd, MissionState
from embodied_kv.types import Observation


@dataclass
class Restart:
    """A restart of the process during a mission.

    moment: when the new process started. words: the open questions of the old one, each with the
    maximum number of tokens of its answer. acting, chunk: s until a step was in force again, and
    until the first chunk arrived; None: not before the mission was over.
    """

    moment: float
    words: list[tuple[str, int]]
    acting: float | None = None
    chunk: float | None = None


@dataclass
class Record:
    """The course of a mission. state: at its last boundary between steps, as its client knows it.

    computed_shares: of each plan's prompt. wrong_plans: number of plans that differ from the
    rules'.
    """

    state: MissionState
    end: MissionEnd | None = None
    seconds: float = 0.0
    restarts: list[Restart] = field(default_factory=list)
    steps: list[tuple[str, bool]] = field(default_factory=list)
    plans: int = 0
    capsules: int = 0
    wrong_plans: int = 0
    computed_shares: list[float] = field(default_factory=list)

    @property
    def restart(self) -> Restart | None:
        """Return the newest restart."""
        return self.restarts[-1] if self.restarts else None


class Body:
    """The body of one robot, in the scene of its case. dt: s between two actions."""

    def __init__(
        self, name: str, table: Tabletop, case: Case, schedule: Schedule, dt: float
    ) -> None:
        self.name, self.table, self.case = name, table, case
        self._schedule, self._dt = schedule, dt
        self._began, self.rollout = schedule.now, Rollout(table)
        self._sequence = 0
        self.judge: Judge | None = None
        self.instruction = ''
        self.record = Record(MissionState(case.words))
        self.is_over = False

    @property
    def now(self) -> float:
        return self._schedule.now

    def advance(self) -> None:
        """Advance the scene to the present moment; the judge sees every period."""
        until = self.now - self._began
        while (left := until - self.rollout.time) > 1e-9:
            self.rollout.advance(min(left, self._dt))
            if self.judge is not None:
                self.judge.see(self.table.truth())

    def see(self, instruction: str) -> Observation:
        """Return an observation of the present moment."""
        self.advance()
        self._sequence, self.instruction = self._sequence + 1, instruction
        images = self.table.render()
        return Observation(
            images=tuple(images[name] for name in CAMERAS),
            state=self.table.state(),
            instruction=instruction,
            stamp=round(self.now * 1e9),
            deadline=-math.inf,
            sequence=self._sequence,
            robot=self.name,
        )

    def follow(self, actions: np.ndarray, began: float) -> None:
        """Follow actions [n, 7] from now on; the first of them was due at `began`."""
        self.advance()
        began -= self._began
        if began + (len(actions) - 1) * self._dt > self.rollout.time:
            self.rollout.follow(actions, began, self._dt)

    def rest(self) -> None:
        """Stop the arm at its present position."""
        self.advance()
        here = np.repeat(self.table.state()[None].astype(np.float64), 2, 0)
        self.rollout.follow(here, self.rollout.time, self._dt)

    # ------------------------------------------------------------------ events

    def told(self, state: MissionState) -> None:
        """Record a change of the mission's state, if no step is in force."""
        if not state.acting:
            self.record.state = state

    def acts(self) -> None:
        """Record that a step is in force."""
        if (restart := self.record.restart) is not None and restart.acting is None:
            restart.acting = self.now - restart.moment

    def served(self) -> None:
        """Record that a chunk has arrived."""
        if (restart := self.record.restart) is not None and restart.chunk is None:
            restart.chunk = self.now - restart.moment

    def killed(self, words: list[tuple[str, int]]) -> None:
        """Record that the process was killed and another one starts now. words: see `Restart`."""
        self.record.restarts.append(Restart(self.now, words))
        self.judge = None

    def over(self, end: MissionEnd | None) -> None:
        """Record the end of the mission. end: None if its time was up."""
        self.advance()
        self.is_over = True
        self.record.end, self.record.seconds = end, self.now - self._began
