"""Covers: equal cups that hide the things under them from both cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from embodied_kv.demo.sim.scene import COVER, MOVABLE, SIZES, SceneConfig, circle
from embodied_kv.demo.sim.tasks import (
    COVERS,
    Task,
    can_be_taken,
    distances,
    lies_on_the_table,
)

if TYPE_CHECKING:  # imports mujoco
    from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth

RADIUS = COVER[0] / 2
OVER = 0.01  # m; a cover is over a thing whose centre is closer to its own
ROOM = 0.005  # m, free distance between a cover and another cover or a thing that it does not hide
TRIES = 200


def draw_covers(things: Sequence[ObjectTruth], rng: np.random.Generator) -> np.ndarray | None:
    """Return the points [2 or 3, 2] (m) of covers, or None if they do not fit.

    At least one cover is over an object; each other one is over an object or over nothing, where
    an object could lie. At least one object remains uncovered.
    """
    count = int(rng.integers(2, COVERS, endpoint=True))
    movable = [thing for thing in things if thing.shape in MOVABLE]
    able = [t for t in movable if can_be_taken(t) and lies_on_the_table(t, things)]
    most = min(count, len(able), len(movable) - 1)
    if most < 1:
        return None
    over = rng.permutation(len(able))[: rng.integers(1, most, endpoint=True)]
    points = [able[i].position[:2] for i in over]
    low, high = np.array([SceneConfig.x, SceneConfig.y]).T
    for point in rng.uniform(low, high, (TRIES, 2)):
        if len(points) == count:
            break
        shape = str(rng.choice(SceneConfig.shapes))
        clear = SceneConfig.clearance + circle(shape, SIZES[shape])
        if all(distances(t.position, point) > circle(t.shape, t.size) + clear for t in things):
            points.append(point)
    covers = np.array(points)[rng.permutation(len(points))]
    return covers if len(covers) == count and _fit(covers, things) else None


def _fit(covers: np.ndarray, things: Sequence[ObjectTruth]) -> bool:
    """Return whether covers touch neither each other nor a thing, of which they leave one."""
    apart = np.stack([distances(covers, cover) for cover in covers])
    np.fill_diagonal(apart, np.inf)
    beside = [
        distances(covers, thing.position) - circle(thing.shape, thing.size)
        for thing in things
        if not is_covered(thing, covers)
    ]
    return bool(apart.min() > 2 * RADIUS + ROOM and beside and np.min(beside) > RADIUS + ROOM)


def is_covered(thing: ObjectTruth, covers: np.ndarray) -> bool:
    """Return whether one of the covers [C, 2] m is over the thing."""
    return bool((distances(covers, thing.position) < OVER).any())


def uncovered(truth: Truth) -> Truth:
    """Return the state without the things under covers: what the cameras can see."""
    visible = (thing for thing in truth.things if not is_covered(thing, truth.covers))
    return replace(truth, things=tuple(visible))


def hidden_tasks(truth: Truth) -> list[Task]:
    """Return the task `hidden` of every covered thing."""
    return [
        Task('hidden', thing.name, spot=tuple(cover.tolist()))
        for thing in truth.things
        for cover in truth.covers
        if is_covered(thing, cover[None])
    ]
