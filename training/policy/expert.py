"""A scripted expert: the next joint targets by the positions of all things now.

The expert is stateless and works in batches of tables. `plan` predicts the following moments with
a geometric model (`imagine`), without a simulator. In this model things do not topple, turn or
touch each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from embodied_kv.demo.sim.kinematics import forward, joint_limits, top_down
from embodied_kv.demo.sim.phases import CARRY, OPENED, Phase, TableMoment, distance
from embodied_kv.demo.sim.tables import Orders, Tables, floor_of_held
from embodied_kv.demo.sim.tasks import HOVER, PUSHING

SPEED, TURN = 0.02, 0.2  # m and rad per control period
OPEN, APART, CLOSED = 0.04, 0.012, 0.0  # m, openings of one finger; APART cradles a pushed thing
REACH = joint_limits()
SHUT = (Phase.CLOSE, Phase.LIFT, Phase.CARRY, Phase.PLACE, Phase.PUT_DOWN)  # the gripper is shut

FINGER_STEP = 0.015  # m that a finger moves in a control period
PAD, TIP = 0.011, 0.009  # m, half of a finger's width, and its length below the gripper point
BETWEEN = 0.016  # m, largest distance of a grasped thing's middle from the gripper point
SQUEEZED = 0.006  # m that a finger may sink into a thing
PUSH_OPENING, PUSH_HEIGHT = 0.02, 0.06  # m, opening and height of fingers that push


def plan(
    state: np.ndarray,
    tables: Tables,
    orders: Orders,
    chunk_size: int,
    committed: np.ndarray | None = None,
    delay: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the next `chunk_size` joint targets, and the present phase.

    state: [B, 7] rad and m -> actions float32 [B, chunk, 7], absolute, and phases int [B].
    Action i is the joint target one control period after action i - 1. committed, delay: float
    [B, chunk, 7] and int [B]; for i < delay the arm follows committed[:, i], which are the
    actions; NaN is no commitment.
    """
    joints = np.array(state, np.float64)
    actions = np.empty((len(joints), chunk_size, joints.shape[1]), np.float32)
    goals = []
    for i in range(chunk_size):
        moment = ExpertMoment(joints, tables, orders)
        goals.append(moment.goal(moment.phase()))
        actions[:, i] = _command(joints, goals[-1])
        if committed is not None:
            given = (i < delay) & np.isfinite(committed[:, i]).all(1)
            actions[given, i] = committed[given, i]
        joints, tables = imagine(joints, actions[:, i], tables)
    return actions, goals[0].phase


@dataclass(frozen=True, eq=False)
class Goal:
    """The goal of one step: point [B, 3] m, roll [B] rad, opening [B] m, and phase [B]."""

    point: np.ndarray
    roll: np.ndarray
    opening: np.ndarray
    phase: np.ndarray


class ExpertMoment(TableMoment):
    """A moment with the goals of the expert."""

    def goal(self, phase: np.ndarray) -> Goal:
        """Return the goal of each table's phase."""
        return Goal(self._point(phase), self._roll(phase), self._opening(phase), phase)

    def _point(self, phase: np.ndarray) -> np.ndarray:
        p, thing = self.p, self.thing
        onto = self.spot + p[:, :2] - thing[:, :2]
        opened = self.gap > OPENED
        ahead = np.column_stack([thing[:, 0], p[:, 1] + self.side * SPEED])
        rest = np.where(self.family['pick'] & self.wanted, CARRY, HOVER)
        points = {
            Phase.HOLD: _at(p, rest),
            Phase.PUT_DOWN: _at(p, p[:, 2] - (self.bottom - self.support) + 0.004),
            Phase.OPEN: p,
            Phase.ABOVE: self._clear_of_things(_at(thing, HOVER)),
            Phase.LOWER: _at(
                thing, np.where(opened, self.grasp_height, np.maximum(p[:, 2], 0.09))
            ),
            Phase.CLOSE: _at(thing, self.grasp_height),
            Phase.LIFT: _at(p, CARRY),
            Phase.CARRY: _at(onto, CARRY),
            Phase.PLACE: _at(onto, p[:, 2] - self.bottom + self.release),
            Phase.BESIDE: self._clear_of_things(_at(self.start, HOVER)),
            Phase.LOWER_BESIDE: _at(self.start, PUSHING),
            Phase.PUSH: _at(ahead, PUSHING),
            Phase.LOST: p,
        }
        return np.select([(phase == k)[:, None] for k in points], list(points.values()))

    def _clear_of_things(self, point: np.ndarray) -> np.ndarray:
        """Return the point, or one straight up while things may be in the way."""
        up = self.low & (distance(self.p, point) > 0.03)
        return np.where(up[:, None], _at(self.p, HOVER), point)

    def _roll(self, phase: np.ndarray) -> np.ndarray:
        grasping = np.isin(phase, (Phase.LOWER, Phase.CLOSE)) | (
            self.grasps & (phase == Phase.ABOVE)
        )
        beside = np.isin(phase, (Phase.BESIDE, Phase.LOWER_BESIDE, Phase.PUSH))
        level = np.isin(phase, (Phase.ABOVE, Phase.CARRY, Phase.PLACE))
        return np.select(
            [grasping, beside, level], [self.grasp_roll, self.push_roll, 0 * self.roll], self.roll
        )

    def _opening(self, phase: np.ndarray) -> np.ndarray:
        shut = np.isin(phase, SHUT) | (self.family['pick'] & self.wanted & (phase == Phase.HOLD))
        rising = (phase == Phase.OPEN) | ((phase == Phase.BESIDE) & self.low)
        cradle = self.family['push'] & ~rising
        return np.select(
            [self.lost & ~self.holds, shut | self.lost, cradle], [self.gap, CLOSED, APART], OPEN
        )


def _command(joints: np.ndarray, goal: Goal) -> np.ndarray:
    """Return the joint targets [B, 7] of one period, on a straight line to the goal."""
    p = forward(joints)
    way = goal.point - p
    length = np.linalg.norm(way, axis=1, keepdims=True)
    point = p + way * np.minimum(1, SPEED / np.maximum(length, 1e-9))
    target = np.column_stack([top_down(_within_reach(point)), goal.opening])
    target[:, 5] = goal.roll
    turn = np.clip(target[:, :6] - joints[:, :6], -TURN, TURN)
    still = goal.phase == Phase.LOST
    target[:, :6] = joints[:, :6] + np.where(still[:, None], 0, turn)
    return np.clip(target, *REACH)


def _within_reach(point: np.ndarray) -> np.ndarray:
    """Return the nearest point in the same direction that the arm reaches from above."""
    distance = np.hypot(point[:, 0], point[:, 1])
    scale = np.clip(distance, 0.16, 0.62) / np.maximum(distance, 1e-9)
    xy = point[:, :2] * scale[:, None]
    return np.column_stack([xy, np.clip(point[:, 2], 0.012, 0.30)])


def _at(xy: np.ndarray, z: np.ndarray | float) -> np.ndarray:
    """Return points [B, 3] over xy [B, 2 or more]."""
    return np.column_stack([xy[:, :2], np.broadcast_to(z, len(xy))])


def imagine(joints: np.ndarray, command: np.ndarray, tables: Tables) -> tuple[np.ndarray, Tables]:
    """Return joints [B, 7] and tables one control period after `command` [B, 7]."""
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
    """Return the held thing [B] after the fingers moved to `gap` [B], and whether it is new.

    before, wanted: previous and commanded openings, m, [B].
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
    """Return the displacement [B, N, 4] of things as empty, shut fingers move sideways."""
    way = after[:, 1] - before[:, 1]
    side = np.sign(way)[:, None]
    pushes = (gap < PUSH_OPENING) & (after[:, 2] < PUSH_HEIGHT) & (tables.held < 0)
    x, y, z = (tables.things[..., i] for i in range(3))
    ahead = tables.movable & ((y - before[:, None, 1]) * side > 0) & (z < PUSH_HEIGHT)
    ahead &= np.abs(x - after[:, None, 0]) < PUSH_OPENING
    overlap = (after[:, None, 1] - y) * side + PAD + tables.size[..., 0] / 2
    moves = np.zeros_like(tables.things)
    moves[..., 1] = np.where(pushes[:, None] & ahead & (overlap > 0), overlap * side, 0)
    return moves
