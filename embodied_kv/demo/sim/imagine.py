"""What a command does to the arm and to the things near it, if all goes well.

Knows the arm's geometry and fingers that close, carry, open and push, in batches of tables. Does
not know tasks, phases or who commands. Things do not topple, turn or meet each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.tables import Tables, floor_of_held

FINGER_STEP = 0.015  # m that a finger moves in a control period
PAD, TIP = 0.011, 0.009  # m, half of a finger's width, and its length below the gripper point
BETWEEN = 0.016  # m from the gripper point, at most, to the middle of what the fingers close on
SQUEEZED = 0.006  # m that a finger may sink into a thing
SHUT, LOW = 0.02, 0.06  # m, opening and height of fingers that push


def imagine(joints: np.ndarray, command: np.ndarray, tables: Tables) -> tuple[np.ndarray, Tables]:
    """Joints [B, 7] and tables one control period after `command` [B, 7] was given."""
    before, after = forward(joints), forward(command)
    step = np.clip(command[:, 6] - joints[:, 6], -FINGER_STEP, FINGER_STEP)
    gap = joints[:, 6] + step
    things = tables.things + _pushed(before, after, gap, tables)
    held, grasped = _grasped(after, joints[:, 6], gap, command[:, 6], tables)

    rows, index, carried = np.arange(len(joints)), np.maximum(held, 0), held >= 0
    width = tables.size[rows, index, 0] / 2
    gap = np.where(carried & (command[:, 6] < width), np.maximum(gap, width), gap)
    dropped = carried & (gap > width + 0.002)
    moves = carried & ~grasped & ~dropped
    things[rows, index, :3] += np.where(moves[:, None], after - before, 0)
    tables = replace(tables, things=things, held=held)
    rest = floor_of_held(tables) + tables.size[rows, index, 2] / 2
    things[rows, index, 2] = np.where(dropped, rest, things[rows, index, 2])
    held = np.where(dropped, -1, held)
    return np.column_stack([command[:, :6], gap]), replace(tables, held=held)


def _grasped(
    grip: np.ndarray, before: np.ndarray, gap: np.ndarray, wanted: np.ndarray, tables: Tables
) -> tuple[np.ndarray, np.ndarray]:
    """What is held [B] once the fingers have moved to `gap` [B], and whether it is so only now.

    before, wanted: m, openings that they come from and go to, [B].
    """
    rows = np.arange(len(grip))
    apart = np.linalg.norm(tables.things[..., :2] - grip[:, None, :2], axis=2)
    apart = np.where(tables.movable, apart, np.inf)
    nearest = apart.argmin(1)
    size, height = tables.size[rows, nearest], tables.things[rows, nearest, 2]
    over = grip[:, 2] - height
    between = (apart[rows, nearest] < BETWEEN) & (np.abs(over) < size[:, 2] / 2 + TIP)
    half = size[:, 0] / 2
    closed = (before > half - SQUEEZED) & (gap <= half) & (wanted < half)
    grasped = (tables.held < 0) & between & closed
    return np.where(grasped, nearest, tables.held), grasped


def _pushed(before: np.ndarray, after: np.ndarray, gap: np.ndarray, tables: Tables) -> np.ndarray:
    """How far things move [B, N, 4] as empty, shut fingers go sideways."""
    way = after[:, 1] - before[:, 1]
    side = np.sign(way)[:, None]
    pushes = (gap < SHUT) & (after[:, 2] < LOW) & (tables.held < 0)
    x, y, z = (tables.things[..., i] for i in range(3))
    ahead = tables.movable & ((y - before[:, None, 1]) * side > 0) & (z < LOW)
    ahead &= np.abs(x - after[:, None, 0]) < SHUT
    overlap = (after[:, None, 1] - y) * side + PAD + tables.size[..., 0] / 2
    moves = np.zeros_like(tables.things)
    moves[..., 1] = np.where(pushes[:, None] & ahead & (overlap > 0), overlap * side, 0)
    return moves
