"""A scripted expert: what a good robot does next, from nothing but where everything is now.

Knows geometry and phases, in batches of tables. Keeps no state: so any moment, also one that went
wrong, can be labelled for any task. `plan` looks ahead by moving the arm and what it holds or
pushes in its mind, not in a simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from embodied_kv.sim.kinematics import forward, joint_limits, top_down
from embodied_kv.sim.tables import Orders, Tables, bottom_of_held, support_of_held
from embodied_kv.sim.tasks import FAMILIES, HOVER, SIDE_LINE

SPEED, TURN = 0.02, 0.2  # m and rad per control period
CARRY, PUSHING = 0.16, 0.024  # m, heights of the gripper point
OPEN, APART, CLOSED = 0.04, 0.012, 0.0  # m, openings of one finger; APART cradles what is pushed
FINGERS = 0.015  # m that a finger moves in a control period
LOW = 0.10  # m; below it the gripper may hit things on its way
BEHIND = 0.030  # m between a thing's circle and the gripper point that is going to push it
REACH, PAD = joint_limits(), 0.011  # PAD: half of a finger's width, m


class Phase(IntEnum):
    """What the expert is doing; `language` says it in words."""

    HOLD = 0
    PUT_DOWN = 1
    OPEN = 2
    ABOVE = 3
    LOWER = 4
    CLOSE = 5
    LIFT = 6
    CARRY = 7
    PLACE = 8
    BESIDE = 9
    LOWER_BESIDE = 10
    PUSH = 11
    LOST = 12


SHUT = (Phase.CLOSE, Phase.LIFT, Phase.CARRY, Phase.PLACE, Phase.PUT_DOWN)  # the gripper is


def plan(
    state: np.ndarray, tables: Tables, orders: Orders, chunk_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The next `chunk_size` joint targets and the phase now.

    state: [B, 7] rad and m -> actions float32 [B, chunk, 7], absolute, and phases int [B].
    Action i is where the joints should be one control period after action i - 1.
    """
    joints = np.array(state, np.float64)
    actions = np.empty((len(joints), chunk_size, joints.shape[1]), np.float32)
    goals = []
    for i in range(chunk_size):
        moment = ExpertMoment(joints, tables, orders)
        goals.append(moment.goal(moment.phase()))
        actions[:, i] = _command(joints, goals[-1])
        joints, tables = _imagine(joints, actions[:, i], goals[-1].phase, tables, orders)
    return actions, goals[0].phase


@dataclass(frozen=True, eq=False)
class Goal:
    """Where one step leads: point [B, 3] m, roll [B] rad, opening [B] m, and the phase [B]."""

    point: np.ndarray
    roll: np.ndarray
    opening: np.ndarray
    phase: np.ndarray


class ExpertMoment:
    """What the rules look at: one number, or one point, for each of B tables.

    p, roll, gap: of the gripper. thing, place: x, y, z, yaw of the order's target and place.
    """

    def __init__(self, joints: np.ndarray, tables: Tables, orders: Orders) -> None:
        rows = np.arange(len(joints))
        self.p, self.roll, self.gap = forward(joints), joints[:, 5], joints[:, 6]
        self.thing, size = tables.things[rows, orders.target], tables.size[rows, orders.target]
        self.place = tables.things[rows, orders.place]
        self.low = self.p[:, 2] < LOW
        self.family = {name: orders.family == i for i, name in enumerate(FAMILIES)}
        self.lost = orders.family < 0
        self.side = orders.side.astype(float)
        round_ = tables.round[rows, orders.target]

        # what is held, and whether it is wanted
        self.holds = tables.held >= 0
        takes = self.family['pick'] | self.family['put']
        self.wanted = self.holds & (tables.held == orders.target) & takes
        self.take = takes & ~self.wanted
        self.bottom, self.support = bottom_of_held(tables), support_of_held(tables)

        # a thing to be taken
        self.apart = _distance(self.p, self.thing)
        period = np.where(round_, np.nan, np.pi / 2)
        self.grasp_roll = _nearest_roll(self.thing[:, 3], self.thing, self.roll, period)
        self.grasp_height = np.maximum(self.thing[:, 2], 0.016)

        # a place to put it
        self.to_place = _distance(self.thing, self.place)
        rim = tables.size[rows, orders.place, 2]
        self.release = rim + np.where(rim > 0.02, -0.005, 0.006)
        self.resting = self.thing[:, 2] - size[:, 2] / 2

        # a thing to be pushed
        self.radius = np.where(round_, size[:, 0] / 2, np.hypot(size[:, 0], size[:, 1]) / 2)
        self.start = self.thing[:, :2].copy()
        self.start[:, 1] -= self.side * (self.radius + BEHIND)
        across = np.full(len(joints), np.pi / 2)
        self.push_roll = _nearest_roll(across, self.thing, self.roll, 2 * across)

    def phase(self) -> np.ndarray:
        """Phases int [B]: of these rules, the first that holds decides."""
        p, family, wanted = self.p, self.family, self.wanted
        unwanted = self.holds & ~wanted & ~self.lost
        turned = np.abs(self.roll - self.grasp_roll) < 0.15
        aligned = (self.apart < np.where(self.low, 0.02, 0.012)) & turned
        there = (self.apart < 0.012) & (np.abs(p[:, 2] - self.grasp_height) < 0.012)
        over = self.to_place < np.where(self.bottom < 0.06, 0.03, 0.012)
        placed = (self.to_place < 0.05) & (self.resting < 0.045)
        behind = (self.thing[:, 1] - p[:, 1]) * self.side
        pushing = (p[:, 2] < 0.06) & (np.abs(p[:, 0] - self.thing[:, 0]) < 0.02)
        pushing &= (behind > 0.012) & (behind < self.radius + 0.07)
        at_start = _distance(p, self.start) < np.where(p[:, 2] < 0.08, 0.03, 0.015)
        at_start &= np.abs(self.roll - self.push_roll) < 0.2
        rules = (
            (self.lost, Phase.LOST),
            (unwanted & (self.bottom > self.support + 0.012), Phase.PUT_DOWN),
            (unwanted, Phase.OPEN),
            (
                family['reach'] & (self.apart < 0.012) & (np.abs(p[:, 2] - HOVER) < 0.02),
                Phase.HOLD,
            ),
            (family['reach'], Phase.ABOVE),
            (family['put'] & ~wanted & placed, Phase.HOLD),
            (self.take & aligned & there, Phase.CLOSE),
            (self.take & aligned, Phase.LOWER),
            (self.take, Phase.ABOVE),
            (family['pick'] & (p[:, 2] > CARRY - 0.02), Phase.HOLD),
            (family['pick'], Phase.LIFT),
            (family['put'] & over & (self.bottom < self.release + 0.008), Phase.OPEN),
            (family['put'] & over, Phase.PLACE),
            (family['put'] & (p[:, 2] < CARRY - 0.04), Phase.LIFT),
            (family['put'], Phase.CARRY),
            (self.side * self.thing[:, 1] > SIDE_LINE, Phase.HOLD),
            (pushing, Phase.PUSH),
            (at_start, Phase.LOWER_BESIDE),
        )
        return np.select([when for when, _ in rules], [then for _, then in rules], Phase.BESIDE)

    def goal(self, phase: np.ndarray) -> Goal:
        """What each table's phase aims at."""
        return Goal(self._point(phase), self._roll(phase), self._opening(phase), phase)

    def _point(self, phase: np.ndarray) -> np.ndarray:
        p, thing = self.p, self.thing
        onto = self.place[:, :2] + p[:, :2] - thing[:, :2]
        opened = self.gap > 0.032
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
        """Straight up first, from where things would be in the way."""
        up = self.low & (_distance(self.p, point) > 0.03)
        return np.where(up[:, None], _at(self.p, HOVER), point)

    def _roll(self, phase: np.ndarray) -> np.ndarray:
        grasping = np.isin(phase, (Phase.LOWER, Phase.CLOSE)) | (
            self.take & (phase == Phase.ABOVE)
        )
        beside = np.isin(phase, (Phase.BESIDE, Phase.LOWER_BESIDE, Phase.PUSH))
        level = np.isin(phase, (Phase.ABOVE, Phase.CARRY))
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
    """One period's joint targets [B, 7] towards the goal, straight in space."""
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


def _imagine(
    joints: np.ndarray, command: np.ndarray, phase: np.ndarray, tables: Tables, orders: Orders
) -> tuple[np.ndarray, Tables]:
    """Joints and tables one period later, if all goes well."""
    rows = np.arange(len(joints))
    before, after = forward(joints), forward(command)
    things, held = tables.things.copy(), tables.held.copy()
    gap = joints[:, 6] + np.clip(command[:, 6] - joints[:, 6], -FINGERS, FINGERS)

    closing = (phase == Phase.CLOSE) & (held < 0)
    half = tables.size[rows, orders.target, 0] / 2
    grasped = closing & (gap <= half)
    held = np.where(grasped, orders.target, held)

    carried = held >= 0
    index = np.maximum(held, 0)
    width = tables.size[rows, index, 0] / 2
    gap = np.where(carried & (command[:, 6] < width), np.maximum(gap, width), gap)
    dropped = carried & (gap > width + 0.002)
    moves = carried & ~grasped & ~dropped
    things[rows, index, :3] += np.where(moves[:, None], after - before, 0)
    rest = (
        support_of_held(replace(tables, things=things, held=held))
        + tables.size[rows, index, 2] / 2
    )
    things[rows, index, 2] = np.where(dropped, rest, things[rows, index, 2])
    held = np.where(dropped, -1, held)

    side = orders.side
    contact = PAD + half
    overlap = (after[:, 1] - things[rows, orders.target, 1]) * side + contact
    pushed = np.where((phase == Phase.PUSH) & (overlap > 0), overlap * side, 0)
    things[rows, orders.target, 1] += pushed
    joints = np.column_stack([command[:, :6], gap])
    return joints, replace(tables, things=things, held=held)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Horizontal, [B]."""
    return np.hypot(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1])


def _nearest_roll(
    yaw: np.ndarray, point: np.ndarray, roll: np.ndarray, period: np.ndarray
) -> np.ndarray:
    """The wrist roll [B] that gives the gripper this yaw over the point, modulo the period.

    Of several, the one nearest to half of the present roll: so the wrist never winds up. Without
    a period (NaN) any yaw will do, and it is 0.
    """
    roll_0 = yaw - np.arctan2(point[:, 1], point[:, 0])
    turns = np.round((roll / 2 - roll_0) / period)
    return np.nan_to_num(roll_0 + turns * period)


def _within_reach(point: np.ndarray) -> np.ndarray:
    """The nearest point that the arm reaches from above, in the same direction."""
    distance = np.hypot(point[:, 0], point[:, 1])
    scale = np.clip(distance, 0.16, 0.62) / np.maximum(distance, 1e-9)
    xy = point[:, :2] * scale[:, None]
    return np.column_stack([xy, np.clip(point[:, 2], 0.012, 0.30)])


def _at(xy: np.ndarray, z: np.ndarray | float) -> np.ndarray:
    """Points [B, 3] over xy [B, 2 or more]."""
    return np.column_stack([xy[:, :2], np.broadcast_to(z, len(xy))])
