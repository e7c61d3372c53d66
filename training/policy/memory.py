"""Tasks that refer to earlier frames of an episode, and the frames that a memory keeps.

A policy with a memory is trained on frames of episodes that get such a task afterwards. A task is
admissible at a frame if the frames that a memory keeps determine its goal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from embodied_kv.demo.sim.covers import hidden_tasks, is_covered
from embodied_kv.demo.sim.phases import Phase, TableMoment
from embodied_kv.demo.sim.scene import MOVABLE, SceneConfig
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Truth
from embodied_kv.demo.sim.tasks import (
    AWAY,
    MOVED,
    NOWHERE,
    Task,
    can_be_taken,
    distances,
    have_room,
    hindrance,
    is_one_place,
    rests_at,
)
from training.policy.episodes import Episode, true_state

INTERVAL = 2.0  # s, longest time between two frames of a memory
TICK = 1e-6  # s; closer times are equal
GRID = 0.01  # m between the spots where a thing could be put
STILL = 0.002  # m, displacement within a control period of a thing at rest


class KeepRule:
    """Decides which frames a memory keeps, as an engine with `engine.memory_rows` does.

    These are the first frame, the last one with each instruction, and another one as soon as
    INTERVAL has passed since the last one; here also if it shows nothing new.
    """

    def __init__(self) -> None:
        self._last = -np.inf  # s, time of the last kept frame

    def keeps(self, time: float, is_last: bool) -> bool:
        """Return whether the next frame is kept. is_last: no later one has its instruction."""
        if is_last or time - self._last > INTERVAL - TICK:
            self._last = time
            return True
        return False


class EpisodeMemory:
    """The memory of an episode at each of its frames."""

    def __init__(self, episode: Episode) -> None:
        self._frames, self._tasks = episode.frames, episode.tasks
        self._number = episode.frames['task_index']
        self._truths = [_truth(episode, t) for t in range(len(episode))]
        self._is_done = self._phases() == Phase.HOLD
        edge = episode.size - 0.5
        pixels = episode.frames['truth.pixels']  # [T, N, views, 2]
        self._in_view = ((pixels >= -0.5) & (pixels <= edge)).all(-1).any(-1)
        self._at, self._rests = self._positions()

    def _phases(self) -> np.ndarray:
        tables = Tables.of(self._truths)
        names = [[thing.name for thing in truth.things] for truth in self._truths]
        orders = Orders.of([self._tasks[number] for number in self._number], names)
        joints = self._frames['observation.state'].astype(np.float64)
        return TableMoment(joints, tables, orders).phase()

    def before(self, since: int, most: int | None = None) -> np.ndarray:
        """Return the frames that a memory has when a task begins, int64 [K], in order.

        since: the first frame with the instruction of that task, which no earlier one has. most:
        the number of memory rows; None for no limit.
        """
        told = np.append(self._number[:since], -1)
        is_last, times = told[1:] != told[:-1], self._frames['timestamp'][:since]
        rule = KeepRule()
        kept = np.flatnonzero([rule.keeps(*each) for each in zip(times, is_last, strict=True)])
        if most is None:
            return kept
        extra = max(0, len(kept) - most)  # as `FrameMemory`: frames of the interval go first
        interval = [row for row in kept.tolist() if row and not is_last[row]][:extra]
        return kept[~np.isin(kept, interval)][-most:]

    def tasks(
        self, frame: int, kept: np.ndarray | None = None, since: int | None = None
    ) -> list[Task]:
        """Return the tasks that kept frames and this frame determine and that are possible.

        since: the frame in which the task began, this one by default. kept: `before(since)` by
        default.
        """
        truth = self._truths[frame]
        since = frame if since is None else since
        kept = self.before(since) if kept is None else kept
        if len(truth.covers):
            return [task for task in hidden_tasks(truth) if self._was_seen(task, frame, kept)]
        wanted = (*self._returns(frame, kept, since), *self._sequences(frame, kept))
        sees = partial(self._sees, frame)
        return [task for task in wanted if not hindrance(task, truth, sees)]

    def _sees(self, frame: int, points: np.ndarray) -> np.ndarray:
        at = np.array([thing.position for thing in self._truths[frame].things])
        nearest = np.linalg.norm(at - points[:, None], axis=2).argmin(1)
        return self._in_view[frame, nearest]

    def _was_seen(self, task: Task, frame: int, kept: np.ndarray) -> bool:
        """Return whether the target was in view without a cover in a kept frame."""
        index = [thing.name for thing in self._truths[frame].things].index(task.target)
        return any(
            self._in_view[t, index]
            and not is_covered(self._truths[t].things[index], self._truths[t].covers)
            for t in kept
        )

    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions [T, N, 2] m of things, and whether they rest in view, bool [T, N]."""
        poses = self._frames['truth.things'][..., :3].astype(np.float64)
        moves = np.pad(np.linalg.norm(np.diff(poses, axis=0), axis=2), ((1, 1), (0, 0)))
        before, after = moves[:-1], moves[1:]
        still = (before < STILL) & ((after < STILL) | (after >= AWAY))  # or then moved by hand
        rests = still & self._in_view
        for t, truth in enumerate(self._truths):
            for i, thing in enumerate(truth.things):
                x, y, _ = thing.position.tolist()
                free = thing.shape in MOVABLE and thing.name != truth.held
                rests[t, i] &= free and rests_at((x, y), thing, truth.things)
        return poses[..., :2], rests

    def _returns(self, frame: int, kept: np.ndarray, since: int) -> Iterator[Task]:
        """Yield a task for each thing that rested at exactly one other place in kept frames.

        Other than where it was when the task began: it may have been moved since, and put down at
        a wrong place. A thing that was held then may be above its place: it is put down there
        again.
        """
        truth, begun = self._truths[frame], self._truths[since]
        for i, (thing, then) in enumerate(zip(truth.things, begun.things, strict=True)):
            if not (can_be_taken(thing) or thing.name == truth.held):
                continue
            places = self._places(kept, i)
            if then.name != begun.held:
                places = places[distances(places, then.position) >= AWAY]
            if is_one_place(places):
                x, y = places[-1].tolist()
                yield Task('return', thing.name, spot=(x, y))

    def _places(self, kept: np.ndarray, i: int) -> np.ndarray:
        """Return where a thing rests in kept frames, float64 [K, 2] m."""
        return self._at[kept[self._rests[kept, i]], i]

    def determines(self, task: Task, frame: int, kept: np.ndarray) -> bool:
        """Return whether kept frames contain what a recorded task of this frame refers to."""
        if task.family == 'hidden':
            return self._was_seen(task, frame, kept)
        if task.family != 'return':
            return True
        index = [thing.name for thing in self._truths[frame].things].index(task.target)
        return bool((distances(self._places(kept, index), task.spot or NOWHERE) < MOVED).any())

    def _sequences(self, frame: int, kept: np.ndarray) -> Iterator[Task]:
        """Yield a task if exactly one thing was reached, in an earlier task, among several."""
        done = {self._number[t] for t in kept if self._is_done[t]}
        reaches = [number for number in done if self._tasks[number].family == 'reach']
        targets = {self._tasks[number].target for number in reaches}
        able = {thing.name for thing in self._truths[frame].things if can_be_taken(thing)}
        if len(targets) == 1 and targets < able and min(reaches) < self._number[frame]:
            yield Task('sequence', targets.pop())


def placements(name: str, truth: Truth) -> list[tuple[float, float]]:
    """Return the free spots (m) of a grid, where objects of a scene lie and this one could be put.

    They are at least AWAY from its present position.
    """
    x, y = (np.arange(*span, GRID).tolist() for span in (SceneConfig.x, SceneConfig.y))
    tasks = [Task('return', name, spot=spot) for spot in product(x, y)]
    spots = np.array([task.spot for task in tasks])
    here = next(thing.position for thing in truth.things if thing.name == name)
    free = have_room(tasks, truth.things) & (distances(spots, here) >= AWAY)
    return [(x, y) for x, y in spots[free].tolist()]


def _truth(episode: Episode, frame: int) -> Truth:
    things, held = (episode.frames[f'truth.{name}'][frame] for name in ('things', 'held'))
    return true_state(episode.colours, episode.shapes, things, held, episode.covers_at(frame))
