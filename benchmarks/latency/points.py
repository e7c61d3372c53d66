"""A point: all episodes of one way at one latency, what is stored of them, and how they are run.

Knows cases, worlds and outcomes. Does not know the figures made of them, or where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from benchmarks.latency.smoothness import Smoothness, smoothness
from benchmarks.latency.ways import ACTORS, chunking_of
from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.model.policy import Policy
from training.evaluate.actors import Chunking
from training.evaluate.cases import Case, Outcome, Setting
from training.evaluate.worlds import ARM, World, run

JERK = 3  # the jerk is the third difference


@dataclass(frozen=True)
class Point:
    """A measured way and latency.

    latency_ms: from an observation until its chunk takes over. spread: as in `Setting`.
    """

    way: str
    latency_ms: float
    spread: float = 0.0
    euler_steps: int = 4

    @property
    def latency(self) -> str:
        """Return the latency (ms) as text for tables."""
        return f'{self.latency_ms:g}' + f' ±{100 * self.spread:g}%' * bool(self.spread)


@dataclass(frozen=True)
class Conditions:
    """The conditions that all points share.

    episodes: number of each family. seed: the set of scenes. robots: worlds of one engine, in
    lockstep. guidance: schedule, horizon and maximum weight of the ways that are guided.
    """

    families: tuple[str, ...]
    episodes: int
    seed: int
    crowded: bool
    robots: int
    guidance: Chunking

    @property
    def cases(self) -> list[Case]:
        """Return the cases, scene by scene with the families in turn: the same for every point."""
        scenes = range(self.episodes)
        return [Case(family, self.seed, scene) for scene in scenes for family in self.families]

    def chunking(self, point: Point) -> Chunking:
        return chunking_of(point.way, point.euler_steps, self.guidance)


@dataclass(frozen=True, eq=False)
class Episodes:
    """Results of the episodes of a point, in the order of the cases; each array is [n].

    outcomes: a character for each episode: s for success, w for another object, else a dot.
    seconds: duration. chunks: number of chunks made. joint_path: path (rad) of the measured
    joints, without the gripper. jerk_rms, jerk_max: rad/s^3, of these joints, every 10 ms, see
    `smoothness`. seam: rad, the largest step at which a chunk took over, in the joint that differs
    most. The last three count from the second take-over on: at the first the arm is at rest, and
    the step is the same in every way. They are NaN without a second take-over.
    """

    families: tuple[str, ...]
    scenes: np.ndarray
    outcomes: str
    seconds: np.ndarray
    chunks: np.ndarray
    jerk_rms: np.ndarray
    jerk_max: np.ndarray
    joint_path: np.ndarray
    seam: np.ndarray

    @classmethod
    def made(cls, outcomes: Sequence[Outcome]) -> Episodes:
        going = [_going(outcome) for outcome in outcomes]
        return cls(
            families=tuple(o.case.family for o in outcomes),
            scenes=np.array([o.case.episode for o in outcomes]),
            outcomes=''.join('s' if o.success else 'w' if o.wrong else '.' for o in outcomes),
            seconds=np.array([o.seconds for o in outcomes]),
            chunks=np.array([len(o.execution_horizons) for o in outcomes]),
            jerk_rms=np.array([of.jerk_rms if of else np.nan for of in going]),
            jerk_max=np.array([of.jerk_max if of else np.nan for of in going]),
            joint_path=np.array([_smoothness(o.joints).path_length for o in outcomes]),
            seam=np.array([o.seams[1:].max() if len(o.seams) > 1 else np.nan for o in outcomes]),
        )

    @property
    def done(self) -> np.ndarray:
        """Return which episodes succeeded, bool [n]."""
        return np.array([outcome == 's' for outcome in self.outcomes])

    def of(self, family: str) -> np.ndarray:
        """Return which episodes are of a family, bool [n]."""
        return np.array([each == family for each in self.families])


def _going(outcome: Outcome) -> Smoothness | None:
    """Return the smoothness from the second take-over on; None if there is too little of it."""
    if len(outcome.moments) < 2:
        return None
    # The first jerk that the new chunk affects begins three set-points earlier.
    since = outcome.joints[max(0, round(outcome.moments[1] / SET_POINT) - JERK) :]
    return _smoothness(since) if len(since) > JERK else None


def _smoothness(joints: np.ndarray) -> Smoothness:
    return smoothness(joints[:, :ARM], 1 / SET_POINT)


def measure(
    policy: Policy,
    point: Point,
    conditions: Conditions,
    on_end: Callable[[], object] = lambda: None,
) -> list[Outcome]:
    """Run every case in the way and at the latency of a point.

    on_end: called at the end of each episode.
    """
    cases, dt = conditions.cases, policy.config.action_dt
    robots = min(conditions.robots, len(cases))
    latency = point.latency_ms / 1e3
    setting = Setting(dt, latency, spread=point.spread, crowded=conditions.crowded)
    actor = ACTORS[point.way](policy, robots, conditions.chunking(point))
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(closing(World(policy.config.vision.image_size, setting)))
            for _ in range(robots)
        ]
        return run(worlds, cases, actor, lambda outcome: on_end())
