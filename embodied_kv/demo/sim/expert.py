"""A scripted expert: what a good robot does next, from nothing but where everything is now.

Knows geometry and phases, in batches of tables. Keeps no state: so any moment, also one that went
wrong, can be labelled for any task. `plan` looks ahead in its mind (`imagine`), not in a
simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from embodied_kv.demo.sim.imagine import imagine
from embodied_kv.demo.sim.kinematics import forward, joint_limits, top_down
from embodied_kv.demo.sim.spots import INSIDE, NEXT, gaps, spot_beside, spot_in
from embodied_kv.demo.sim.tables import Orders, Tables, bottom_of_held, bottoms, support_of_held
from embodied_kv.demo.sim.tasks import BEHIND, FAMILIES, HOVER, LOWEST, RESTING, SIDE_LINE

OPENED = 0.032  # m, of fingers that may go down around a thing
SPEED, TURN = 0.02, 0.2  # m and rad per control period
CARRY, PUSHING = 0.16, 0.024  # m, heights of the gripper point
OPEN, APART, CLOSED = 0.04, 0.012, 0.0  # m, openings of one finger; APART cradles what is pushed
LOW = 0.10  # m; below it the gripper may hit things on its way
DOWN = 0.125  # m; below it the gripper is on its way down
ABOVE_RIM = 0.012  # m; so high above a rim the fingers' tips are clear of it
TURNED, TURNED_DOWN = 0.15, 0.3  # rad, of the wrist's roll; wider where it is on its way down
NEAR, NEAR_DOWN = 0.012, 0.02  # m, from above a thing; so is this
REACH = joint_limits()


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
    state: np.ndarray,
    tables: Tables,
    orders: Orders,
    chunk_size: int,
    committed: np.ndarray | None = None,
    delay: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The next `chunk_size` joint targets and the phase now.

    state: [B, 7] rad and m -> actions float32 [B, chunk, 7], absolute, and phases int [B].
    Action i is where the joints should be one control period after action i - 1.
    committed, delay: float [B, chunk, 7] and int [B]; the arm follows committed[:, i] for all
    i < delay, whatever the expert thinks of it, and those are the actions; NaN is no commitment.
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
    """Where one step leads: point [B, 3] m, roll [B] rad, opening [B] m, and the phase [B]."""

    point: np.ndarray
    roll: np.ndarray
    opening: np.ndarray
    phase: np.ndarray


class ExpertMoment:
    """What the rules look at: one number, or one point, for each of B tables.

    p, roll, gap: of the gripper. thing: x, y, z, yaw of the order's target. spot: x, y of where
    it is to be put.
    """

    def __init__(self, joints: np.ndarray, tables: Tables, orders: Orders) -> None:
        rows = np.arange(len(joints))
        self.p, self.roll, self.gap = forward(joints), joints[:, 5], joints[:, 6]
        self.thing = tables.things[rows, orders.target]
        self.low = self.p[:, 2] < LOW
        self.family = {name: orders.family == i for i, name in enumerate(FAMILIES)}
        self.lost = orders.family < 0
        self.side = orders.side.astype(float)
        round_ = tables.round[rows, orders.target]

        # what is held, and whether it is wanted
        self.holds = tables.held >= 0
        self.beside = self.family['take'] | self.family['next']
        self.puts = self.family['put'] | self.beside
        grasps = self.family['pick'] | self.puts
        self.wanted = self.holds & (tables.held == orders.target) & grasps
        self.grasps = grasps & ~self.wanted
        self.bottom, self.support = bottom_of_held(tables), support_of_held(tables)

        # a thing to be grasped, perhaps out of a receptacle
        at, resting = tables.things[..., :2], bottoms(tables)[rows, orders.target]
        apart = np.linalg.norm(at - self.thing[:, None, :2], axis=2)
        within = tables.receptacle & (apart < INSIDE) & (resting < LOWEST)[:, None]
        away, rim = within.any(1), np.where(within, tables.size[..., 2], 0).max(1)
        self.apart = _distance(self.p, self.thing)
        period = np.where(round_, np.nan, np.pi / 2)
        across = np.where(away, 0, self.roll)  # a neighbour stands inward or outward
        self.grasp_roll = _nearest_roll(self.thing[:, 3], self.thing, across, period)
        self.grasp_height = np.maximum(np.maximum(self.thing[:, 2], 0.016), rim + ABOVE_RIM)
        over_a_wall = (rim > 0.02) & (self.gap > OPENED)
        self.grasp_error = np.where(over_a_wall, 0.005, 0.012)

        # a place to put it
        spot, _ = spot_in(at, tables.movable, orders.target, orders.place)
        beside, _ = spot_beside(at, tables.radius, orders.target, orders.place)
        self.spot = np.where(self.beside[:, None], beside, spot)
        self.to_spot = _distance(self.thing, self.spot)
        rim = np.where(self.beside, 0, tables.size[rows, orders.place, 2])
        self.release = rim + np.where(rim > 0.02, -0.005, 0.006)
        on_the_table = (resting < RESTING) & ~away
        near = gaps(at, tables.radius, orders.target, orders.place) < NEXT
        self.placed = np.select(
            [self.family['put'], self.family['take'], self.family['next']],
            [within[rows, orders.place], on_the_table, on_the_table & near],
            False,
        )

        # a thing to be pushed
        self.radius = tables.radius[rows, orders.target]
        self.start = self.thing[:, :2].copy()
        self.start[:, 1] -= self.side * (self.radius + BEHIND)
        across = np.full(len(joints), np.pi / 2)
        self.push_roll = _nearest_roll(across, self.thing, self.roll, 2 * across)

    def phase(self) -> np.ndarray:
        """Phases int [B]: of these rules, the first that holds decides."""
        p, family, wanted = self.p, self.family, self.wanted
        unwanted = self.holds & ~wanted & ~self.lost
        down = p[:, 2] < DOWN
        turned = np.abs(self.roll - self.grasp_roll) < np.where(down, TURNED_DOWN, TURNED)
        aligned = (self.apart < np.where(down, NEAR_DOWN, NEAR)) & turned
        there = np.abs(p[:, 2] - self.grasp_height) < self.grasp_error
        there &= self.apart < 0.012
        lowered = self.bottom < 0.06
        level = np.abs(self.roll) < np.where(lowered, TURNED_DOWN, TURNED)
        over = (self.to_spot < np.where(lowered, 0.03, NEAR_DOWN)) & level
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
            (self.placed & ~wanted, Phase.HOLD),
            (self.grasps & aligned & there, Phase.CLOSE),
            (self.grasps & aligned, Phase.LOWER),
            (self.grasps, Phase.ABOVE),
            (family['pick'] & (p[:, 2] > CARRY - 0.02), Phase.HOLD),
            (family['pick'], Phase.LIFT),
            (self.puts & over & (self.bottom < self.release + 0.008), Phase.OPEN),
            (self.puts & over, Phase.PLACE),
            (self.puts & (p[:, 2] < CARRY - 0.04), Phase.LIFT),
            (self.puts, Phase.CARRY),
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
        """Straight up first, from where things would be in the way."""
        up = self.low & (_distance(self.p, point) > 0.03)
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
