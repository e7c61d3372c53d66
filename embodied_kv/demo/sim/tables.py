"""The true states of many tables, and their tasks, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embodied_kv.demo.sim.scene import FLOORS, RECEPTACLES, circle
from embodied_kv.demo.sim.spots import INSIDE
from embodied_kv.demo.sim.tasks import EVERY_FAMILY, LOWEST, NOWHERE, RESTING, SIDES, Task

if TYPE_CHECKING:  # imports mujoco
    from embodied_kv.demo.sim.tabletop import Truth


@dataclass(frozen=True, eq=False)
class Tables:
    """B tables at one moment, at most N things on each.

    things: float64 [B, N, 4] x, y, z in m and yaw in rad, NaN for absent ones. size: float64
    [B, N, 3] m. radius: float64 [B, N] m, of the circle around a footprint. floor: float64 [B, N]
    m, the height of a receptacle's floor. round, receptacle: bool [B, N]. held: int [B], -1 for
    nothing.
    """

    things: np.ndarray
    size: np.ndarray
    radius: np.ndarray
    floor: np.ndarray
    round: np.ndarray
    receptacle: np.ndarray
    held: np.ndarray

    @property
    def movable(self) -> np.ndarray:
        """Whether there is a movable thing: bool [B, N]."""
        return ~self.receptacle & ~np.isnan(self.size[..., 0])

    @classmethod
    def of(cls, truths: Sequence[Truth]) -> Tables:
        """Return the tables of these true states."""
        most = max(len(truth.things) for truth in truths)
        things = np.full((len(truths), most, 4), np.nan)
        size = np.full((len(truths), most, 3), np.nan)
        radius, floor = np.full((len(truths), most), np.nan), np.zeros((len(truths), most))
        kinds = np.zeros((2, len(truths), most), bool)
        held = np.full(len(truths), -1)
        for b, truth in enumerate(truths):
            for n, thing in enumerate(truth.things):
                things[b, n] = *thing.position, thing.yaw
                size[b, n] = thing.size
                radius[b, n] = circle(thing.shape, thing.size)
                floor[b, n] = FLOORS.get(thing.shape, 0.0)
                kinds[:, b, n] = thing.shape == 'cylinder', thing.shape in RECEPTACLES
                if thing.name == truth.held:
                    held[b] = n
        return cls(things, size, radius, floor, kinds[0], kinds[1], held)


@dataclass(frozen=True, eq=False)
class Orders:
    """B tasks as numbers, each int [B] but spot.

    family: index in EVERY_FAMILY, -1 for an unknown instruction. target, place: index of a thing
    (0 where the family has none). side: +1 left, -1 right. spot: float64 [B, 2] m, NaN where the
    family has none.
    """

    family: np.ndarray
    target: np.ndarray
    place: np.ndarray
    side: np.ndarray
    spot: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task | None], names: Sequence[Sequence[str]]) -> Orders:
        """Return the orders of tasks. names: of the things on each table. Raises ValueError."""
        rows = [
            (
                EVERY_FAMILY.index(task.family),
                things.index(task.target),
                things.index(task.place) if task.place else 0,
                int(SIDES.get(task.side, 0)),
            )
            if task
            else (-1, 0, 0, 0)
            for task, things in zip(tasks, names, strict=True)
        ]
        spots = [task.spot if task and task.spot else NOWHERE for task in tasks]
        family, target, place, side = np.array(rows, int).reshape(-1, 4).T
        return cls(family, target, place, side, np.array(spots).reshape(-1, 2))


def bottoms(tables: Tables) -> np.ndarray:
    """Return the heights [B, N] of the lower sides of upright things."""
    return tables.things[..., 2] - tables.size[..., 2] / 2


def on_things_in(tables: Tables, targets: np.ndarray) -> np.ndarray:
    """Return [B, N] whether the target stands on a thing in that receptacle; see `lies_in`."""
    rows, at, low = np.arange(len(targets)), tables.things[..., :2], bottoms(tables)
    tops = low + tables.size[..., 2]
    above = np.linalg.norm(at - at[rows, targets][:, None], axis=2) < tables.radius
    above &= np.abs(low[rows, targets][:, None] - tops) < RESTING
    above &= tables.movable & (low < LOWEST)
    apart = np.linalg.norm(at[:, :, None] - at[:, None], axis=3)  # [B, thing, receptacle]
    return (above[:, :, None] & (apart < INSIDE)).any(1)


def bottom_of_held(tables: Tables) -> np.ndarray:
    """Return the height [B] of the lower side of the held thing."""
    return bottoms(tables)[np.arange(len(tables.held)), np.maximum(tables.held, 0)]


def support_of_held(tables: Tables) -> np.ndarray:
    """Return the height [B] of the support below the held thing: table, or a receptacle's rim."""
    return _under_held(tables, tables.size[..., 2], 0.09)


def floor_of_held(tables: Tables) -> np.ndarray:
    """Return the height [B] that the held thing falls to: table, or a receptacle's floor."""
    return _under_held(tables, tables.floor, INSIDE)


def _under_held(tables: Tables, height: np.ndarray, distance: float) -> np.ndarray:
    rows, index = np.arange(len(tables.held)), np.maximum(tables.held, 0)
    apart = tables.things[..., :2] - tables.things[rows, index][:, None, :2]
    under = tables.receptacle & (np.hypot(apart[..., 0], apart[..., 1]) < distance)
    return np.where(under, height, 0).max(1)
