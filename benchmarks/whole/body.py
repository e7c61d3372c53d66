"""What a kill does not end: a table, an arm that finishes what it was sent, and how it fared.

Knows the scene's clock, which is the schedule's. Does not know who thinks, or by what. It belongs
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
    """moment: at which a new process was there. words: what the old one was answering.

    Each of the words comes with the tokens that its answer has at most. acting, chunk: s until a
    step was in force again, and until the first chunk came; None: not before the mission was over.
    """

    moment: float
    words: list[tuple[str, int]]
    acting: float | None = None
    chunk: float | None = None


@dataclass
class Record:
    """How a mission fared. state: at its last boundary between steps, as its client knows it.

    computed_shares: of each plan's prompt. wrong_plans: what the rules would not have said.
    """

    state: MissionState
    end: MissionEnd | None = None
    seconds: float = 0.0
    restart: Restart | None = None
    steps: list[tuple[str, bool]] = field(default_factory=list)
    plans: int = 0
    capsules: int = 0
    wrong_plans: int = 0
    computed_shares: list[float] = field(default_factory=list)


class Body:
    """One robot's, in the scene that its case has drawn. dt: s between two actions."""

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
        """The scene goes on until now, judged every period."""
        until = self.now - self._began
        while (left := until - self.rollout.time) > 1e-9:
            self.rollout.advance(min(left, self._dt))
            if self.judge is not None:
                self.judge.see(self.table.truth())

    def see(self, instruction: str) -> Observation:
        """The present moment."""
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
        """From now on, of actions [n, 7], the first of which was due at `began`."""
        self.advance()
        began -= self._began
        if began + (len(actions) - 1) * self._dt > self.rollout.time:
            self.rollout.follow(actions, began, self._dt)

    def rest(self) -> None:
        """The arm comes to rest where it is."""
        self.advance()
        here = np.repeat(self.table.state()[None].astype(np.float64), 2, 0)
        self.rollout.follow(here, self.rollout.time, self._dt)

    # ------------------------------------------------------------------ what is told of it

    def told(self, state: MissionState) -> None:
        """The mission's state has changed."""
        if not state.acting:
            self.record.state = state

    def acts(self) -> None:
        """A step is in force."""
        if (restart := self.record.restart) is not None and restart.acting is None:
            restart.acting = self.now - restart.moment

    def served(self) -> None:
        """A chunk has come."""
        if (restart := self.record.restart) is not None and restart.chunk is None:
            restart.chunk = self.now - restart.moment

    def killed(self, words: list[tuple[str, int]]) -> None:
        """Who thought for it is gone, and another one begins now; words: see `Restart`."""
        self.record.restart, self.judge = Restart(self.now, words), None

    def over(self, end: MissionEnd | None) -> None:
        """end: None where its time was up."""
        self.advance()
        self.is_over = True
        self.record.end, self.record.seconds = end, self.now - self._began
