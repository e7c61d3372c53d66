"""Types of an evaluation: cases, settings, and inputs and outputs of an actor.

This module knows numbers only. Scene seeds of evaluation begin at 2,000,000; those of training end
below 1,000,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.demo.sim.tabletop import Truth
from embodied_kv.demo.sim.tasks import Task
from embodied_kv.types import Observation

FIRST_SCENE, SCENES_PER_SEED = 2_000_000, 10_000
CONTROLS = ('none', 'blank', 'wrong_colour')
LONGEST = 10  # actions of a leftover
SPIKES = 0.05  # share of doubled latencies, if they vary


@dataclass(frozen=True)
class Case:
    """One episode: the family of its task, and episode `episode` of seed `seed`."""

    family: str
    seed: int
    episode: int

    @property
    def name(self) -> str:
        """Name of the robot; with the period it is the key of the action noise."""
        return f'{self.family}-{self.seed}-{self.episode}'

    @property
    def scene_seed(self) -> int:
        return FIRST_SCENE + self.seed * SCENES_PER_SEED + self.episode


@dataclass(frozen=True)
class Setting:
    """How episodes run.

    dt: s of a control period and between two actions. latency: s from an observation until its
    chunk takes over, 0 or more; a robot makes one chunk at a time. spread: of a latency that
    varies, see `latencies`. every: periods between two chunks, at least. control: of CONTROLS;
    `blank` hides the images, `wrong_colour` names another object than the one that is judged.
    crowded: scenes with two places and things that are put away. between: further tasks that the
    past of `return` and `sequence` has.
    """

    dt: float
    latency: float
    every: int = 1
    control: str = 'none'
    spread: float = 0.0
    crowded: bool = False
    between: int = 0

    def latencies(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield s for each chunk of an episode: uniform within +- spread, one in 20 doubled."""
        while True:
            spike = 2.0 if self.spread and rng.random() < SPIKES else 1.0
            drawn = self.latency * spike * (1 + self.spread * rng.uniform(-1, 1))
            yield round(drawn / SET_POINT) * SET_POINT if self.spread else self.latency


@dataclass(frozen=True, eq=False)
class Moment:
    """A moment that a memory keeps.

    time: s since the episode began. images: uint8 [S, S, 3] in the order of CAMERAS. state:
    float32 [7], rad and m. instruction: at this time. text: what was true, in words.
    """

    time: float
    images: tuple[np.ndarray, ...]
    state: np.ndarray
    instruction: str
    text: str


@dataclass(frozen=True, eq=False)
class Frame:
    """The input of an actor.

    number: 0 for the first frame of the episode. leftover: float [LONGEST, 7], the leftover
    actions, the i-th i periods after the observation, NaN where nothing is planned. delay:
    expected number of these that will have passed when the chunk takes over. told: the task that
    the instruction names. truth: for an expert, and for the correct answers to questions. scene:
    its seed. memory: the earlier moments that a memory has kept.
    """

    case: Case
    number: int
    scene: int
    observation: Observation
    truth: Truth
    told: Task
    leftover: np.ndarray
    delay: int
    memory: tuple[Moment, ...] = ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an episode.

    success, wrong: by the Judge. seconds: duration. path: m that the gripper point moved. first:
    the first chunk, float [chunk, 7]. execution_horizons: of every chunk, in periods. joints:
    float [n, 7], positions at every SET_POINT. seams: float [m], rad: jump of the arm's target
    when each chunk took over, in the joint that differs most. moments: float [m], s, when each
    did.
    """

    case: Case
    success: bool
    wrong: bool
    seconds: float
    path: float
    first: np.ndarray
    execution_horizons: tuple[int, ...]
    joints: np.ndarray
    seams: np.ndarray
    moments: np.ndarray


class Choice(NamedTuple):
    """The output of an actor.

    chunk: float [chunk, 7], absolute joint targets, rad and m, dt apart; None: the last one
    continues. execution_horizon: H, control periods until the next frame; None: as in the setting.
    """

    chunk: np.ndarray | None = None
    execution_horizon: int | None = None


class Actor(Protocol):
    """Chooses the actions."""

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        """Return a choice for each frame."""

    def finish(self) -> None:
        """Finish after the last episode."""
