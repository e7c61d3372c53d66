"""Tabletops in lockstep: each has an unseen scene and one task, which is judged every period.

A task that refers to the past comes after a past, which the expert has played.

This module knows simulated time, tasks, and how a chunk takes over from the previous one. It does
not know what acts: that is an Actor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from embodied_kv.control.rtc import DelayEstimator, passed
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import (
    EVERY_PHRASE,
    MEMORY_FAMILIES,
    SECONDS,
    Judge,
    Task,
    can_be_taken,
    draw_task,
    task_scene,
)
from embodied_kv.types import Observation
from training.evaluate.cases import (
    LONGEST,
    Actor,
    Case,
    Choice,
    Frame,
    Moment,
    Outcome,
    Setting,
)
from training.evaluate.memory import Past

ANOTHER = 1_000_000  # added to the seed of a scene in which the family has no task
AFTERWARDS = 8  # control periods that an episode continues after its task is done
TASK_RNG, QUESTION_RNG, LATENCY_RNG = 1, 2, 3  # random streams of a scene
TICK = 1e-6  # s; closer times are equal
ARM = 6  # joints, without the gripper


class World:
    """One tabletop and its current episode. Close it after the last one."""

    def __init__(self, image_size: int, setting: Setting) -> None:
        self.setting = setting
        self._image_size = image_size
        self._table = Tabletop(task_scene(image_size=image_size))
        self._rollout = Rollout(self._table)

    def begin(self, case: Case) -> None:
        """Reset to the scene of the case at time 0, and draw its task."""
        setting = self.setting
        self.case, self.period = case, 0
        self._due, self._executes = 0, []
        self._limit = round(SECONDS[case.family] / setting.dt)
        self._table.config = task_scene(case.family, setting.crowded, image_size=self._image_size)
        for self._scene in count(case.scene_seed, ANOTHER):
            self._table.reset(self._scene)
            rng = np.random.default_rng((self._scene, TASK_RNG))
            task = self._draw_task(case.family, rng)
            if task is not None:
                break
        self._truth = self._table.truth()
        self._rollout.restart()
        self._coming: tuple[np.ndarray, float, float] | None = None  # chunk, start, takeover
        self._latencies = setting.latencies(np.random.default_rng((self._scene, LATENCY_RNG)))
        self._delays = DelayEstimator(setting.dt, LONGEST, setting.latency + TICK)
        self._judge = Judge(task, self._truth)
        self._told = self._another(task, rng) if setting.control == 'wrong_colour' else task
        phrases = 2 * len(EVERY_PHRASE[case.family])
        self._instruction = self._told.phrase(int(rng.integers(phrases)))
        self._path, self._first, self._seams, self._moments = 0.0, None, [], []
        self._result: Outcome | None = None  # as it was when the task was done

    def _draw_task(self, family: str, rng: np.random.Generator) -> Task | None:
        """Return a task of the present scene, or None. A past may precede it."""
        self._memory: tuple[Moment, ...] = ()
        if family not in MEMORY_FAMILIES:
            return draw_task(self._table.objects(), rng, family)
        past = Past(self._table, self.setting.dt, rng, self.setting.between)
        task = past.lead_to(family)
        self._memory = tuple(past.moments)
        return task

    def _another(self, task: Task, rng: np.random.Generator) -> Task:
        others = [t.name for t in self._truth.things if can_be_taken(t) and t.name != task.target]
        return replace(task, target=others[rng.integers(len(others))])

    @property
    def is_due(self) -> bool:
        """Whether this period begins with a frame."""
        return self.period >= self._due and self._coming is None

    @property
    def is_over(self) -> bool:
        """Whether the task has been done for a while, or its time is up."""
        if self._result is not None:
            return self.period - round(self._result.seconds / self.setting.dt) >= AFTERWARDS
        return self.period >= self._limit

    def look(self) -> Frame:
        """Return the current frame."""
        images = self._table.render()
        if self.setting.control == 'blank':
            images = {name: np.zeros_like(image) for name, image in images.items()}
        observation = Observation(
            images=tuple(images[name] for name in CAMERAS),
            state=self._table.state(),
            instruction=self._instruction,
            stamp=round(self._rollout.time * 1e9),
            deadline=-np.inf,  # past: the row is free as soon as it is not read
            sequence=self.period,
            robot=self.case.name,
        )
        number = len(self._executes) - (not self.is_due)
        leftover = self._rollout.player.planned(
            self._rollout.time + self.setting.dt * np.arange(LONGEST)
        )
        return Frame(
            self.case,
            number,
            self._scene,
            observation,
            self._truth,
            self._told,
            leftover,
            self._delays.expected(0.0),
            self._memory,
        )

    def step(self, chunk: np.ndarray | None, execution_horizon: int | None = None) -> None:
        """Take one control period; `chunk`, for its begin, takes over after the latency.

        Without a chunk the last one continues. execution_horizon: as in Choice.
        """
        if self.is_due:
            self._executes.append(execution_horizon or self.setting.every)
            self._due = self.period + self._executes[-1]
        start, before = self._rollout.time, self._truth.grip
        end = start + self.setting.dt
        if chunk is not None:
            self._coming = chunk, start, start + next(self._latencies)
            self._first = chunk if self._first is None else self._first
        if self._coming is not None and self._coming[2] < end + TICK:
            self._take_over(*self._coming)
            self._coming = None
        self._until(end)
        self.period += 1
        self._truth = self._table.truth()
        self._path += float(np.linalg.norm(self._truth.grip - before))
        self._judge.see(self._truth)
        if self._judge.done and self._result is None:
            self._result = self.outcome()

    def _take_over(self, chunk: np.ndarray, start: float, moment: float) -> None:
        """Follow a chunk from its moment on.

        It is not followed if all of its actions have passed by then.
        """
        self._until(moment)
        late = moment - start + TICK  # an action that is due now is too late
        self._delays.observe(late)
        first = passed(late, self.setting.dt, len(chunk))
        if first < len(chunk):
            ran = self._rollout.player.target(start + first * self.setting.dt)
            self._seams.append(float(np.abs(chunk[first] - ran)[:ARM].max()))
            self._moments.append(moment)
            self._rollout.follow(chunk, start, self.setting.dt)

    def _until(self, moment: float) -> None:
        if moment > self._rollout.time + TICK:
            self._rollout.advance(moment - self._rollout.time)

    def outcome(self) -> Outcome:
        """Return the outcome of the episode until now, or until its task was done."""
        if self._result is not None:
            return self._result
        judge, seconds = self._judge, self.period * self.setting.dt
        execution_horizons = tuple(self._executes)
        how = judge.done, judge.wrong, seconds, self._path, self._first
        moved = (np.array(x) for x in (self._rollout.path, self._seams, self._moments))
        return Outcome(self.case, *how, execution_horizons, *moved)

    def close(self) -> None:
        """Close the table."""
        self._table.close()


def run(
    worlds: Sequence[World],
    cases: Sequence[Case],
    actor: Actor,
    on_end: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """Run all cases and return their outcomes, in order.

    A world whose episode ends takes the next case. on_end: called with each outcome as it comes.
    """
    waiting, outcomes = deque(cases), {}
    live = [world for world in worlds if _begin(world, waiting)]
    while live:
        due = [world for world in live if world.is_due]
        frames = [world.look() for world in due]
        choices = dict(zip(due, actor.act(frames), strict=True)) if due else {}
        for world in live:
            world.step(*choices.get(world, Choice()))
            if world.is_over:
                outcomes[world.case] = world.outcome()
                on_end(outcomes[world.case])
        live = [world for world in live if not world.is_over or _begin(world, waiting)]
    actor.finish()
    return [outcomes[case] for case in cases]


def _begin(world: World, waiting: deque[Case]) -> bool:
    """Begin the next case in the world. Returns whether there was one."""
    if waiting:
        world.begin(waiting.popleft())
        return True
    return False
