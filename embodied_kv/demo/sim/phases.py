"""The phases of a scripted expert: its next action, from the positions of all things.

The rules are stateless and work in batches of tables, so every moment can be labelled for every
task, also after a failure. `training.policy.expert` derives actions from them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.spots import INSIDE, NEXT, gaps, spot_beside, spot_in
from embodied_kv.demo.sim.tables import (
    Orders,
    Tables,
    bottom_of_held,
    bottoms,
    on_things_in,
    support_of_held,
)
from embodied_kv.demo.sim.tasks import (
    BEHIND,
    EVERY_FAMILY,
    HOVER,
    LOWEST,
    REACHES,
    RESTING,
    RETURNED,
    SIDE_LINE,
)

OPENED = 0.032  # m, finger opening that passes around a thing
CARRY = 0.16  # m, height of the gripper point
LOW = 0.10  # m; below it the gripper may hit things on its way
DOWN = 0.125  # m; below it the gripper is on its way down
ABOVE_RIM = 0.012  # m; at this height above a rim the fingertips are clear of it
TURNED, TURNED_DOWN = 0.15, 0.3  # rad, tolerance of the wrist roll; wider on the way down
NEAR, NEAR_DOWN = 0.012, 0.02  # m, horizontal tolerance above a thing; wider on the way down


class Phase(IntEnum):
    """The present action of the expert; `language` describes it in words."""

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


class TableMoment:
    """The inputs of the rules, for each of B tables.

    p, roll, gap: of the gripper. thing: x, y, z, yaw of the target. spot: x, y of the goal.
    """

    def __init__(self, joints: np.ndarray, tables: Tables, orders: Orders) -> None:
        rows = np.arange(len(joints))
        self.p, self.roll, self.gap = forward(joints), joints[:, 5], joints[:, 6]
        thing = tables.things[rows, orders.target]
        self.low = self.p[:, 2] < LOW
        self.family = {name: orders.family == i for i, name in enumerate(EVERY_FAMILY)}
        self.lost = orders.family < 0
        self.reaches = np.any([self.family[name] for name in REACHES], 0)
        cover = np.column_stack([orders.spot, thing[:, 2:]])
        self.thing = np.where(self.family['hidden'][:, None], cover, thing)
        self.side = orders.side.astype(float)
        round_ = tables.round[rows, orders.target]

        # the held thing, and whether it is wanted
        self.holds = tables.held >= 0
        self.beside, again = self.family['take'] | self.family['next'], self.family['return']
        self.puts = self.family['put'] | self.beside | again
        grasps = self.family['pick'] | self.puts
        self.wanted = self.holds & (tables.held == orders.target) & grasps
        self.grasps = grasps & ~self.wanted
        self.bottom, self.support = bottom_of_held(tables), support_of_held(tables)

        # a thing to grasp, possibly out of a receptacle
        at, resting = tables.things[..., :2], bottoms(tables)[rows, orders.target]
        apart = np.linalg.norm(at - self.thing[:, None, :2], axis=2)
        within = tables.receptacle & (apart < INSIDE)
        within &= (resting < LOWEST)[:, None] | on_things_in(tables, orders.target)
        away, rim = within.any(1), np.where(within, tables.size[..., 2], 0).max(1)
        self.apart = distance(self.p, self.thing)
        period = np.where(round_, np.nan, np.pi / 2)
        across = np.where(away, 0, self.roll)  # the other thing is inward or outward
        self.grasp_roll = nearest_roll(self.thing[:, 3], self.thing, across, period)
        self.grasp_height = np.maximum(np.maximum(self.thing[:, 2], 0.016), rim + ABOVE_RIM)
        over_a_wall = (rim > 0.02) & (self.gap > OPENED)
        self.grasp_error = np.where(over_a_wall, 0.005, 0.012)

        # the goal of the grasped thing
        spot, _ = spot_in(at, tables.movable, orders.target, orders.place)
        beside, _ = spot_beside(at, tables.radius, orders.target, orders.place)
        self.spot = np.where(self.beside[:, None], beside, spot)
        self.spot = np.where(again[:, None], orders.spot, self.spot)
        self.to_spot = distance(self.thing, self.spot)
        there = np.linalg.norm(at - self.spot[:, None], axis=2) < INSIDE
        there &= tables.receptacle  # the receptacle of the spot
        rim = np.where(self.beside, 0, tables.size[rows, orders.place, 2])
        rim = np.where(again, np.where(there, tables.size[..., 2], 0).max(1), rim)
        self.release = rim + np.where(rim > 0.02, -0.005, 0.006)
        on_the_table = (resting < RESTING) & ~away
        near = gaps(at, tables.radius, orders.target, orders.place) < NEXT
        rests = np.where(there.any(1), (there & within).any(1), on_the_table)
        returned = rests & (self.to_spot < RETURNED)
        self.placed = np.select(
            [self.family['put'], self.family['take'], self.family['next'], again],
            [within[rows, orders.place], on_the_table, on_the_table & near, returned],
            False,
        )

        # a thing to push
        self.radius = tables.radius[rows, orders.target]
        self.start = self.thing[:, :2].copy()
        self.start[:, 1] -= self.side * (self.radius + BEHIND)
        across = np.full(len(joints), np.pi / 2)
        self.push_roll = nearest_roll(across, self.thing, self.roll, 2 * across)

    def phase(self) -> np.ndarray:
        """Return the phases, int [B]: the first rule that holds decides."""
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
        at_start = distance(p, self.start) < np.where(p[:, 2] < 0.08, 0.03, 0.015)
        at_start &= np.abs(self.roll - self.push_roll) < 0.2
        rules = (
            (self.lost, Phase.LOST),
            (unwanted & (self.bottom > self.support + 0.012), Phase.PUT_DOWN),
            (unwanted, Phase.OPEN),
            (
                self.reaches & (self.apart < 0.012) & (np.abs(p[:, 2] - HOVER) < 0.02),
                Phase.HOLD,
            ),
            (self.reaches, Phase.ABOVE),
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


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return horizontal distances [B]."""
    return np.hypot(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1])


def nearest_roll(
    yaw: np.ndarray, point: np.ndarray, roll: np.ndarray, period: np.ndarray
) -> np.ndarray:
    """Return the wrist roll [B] that gives the gripper this yaw at the point.

    The roll is unique modulo the period; the result is nearest to half of the present roll, so
    that the wrist never winds up. For a period of NaN any yaw is valid, and the roll is 0.
    """
    roll_0 = yaw - np.arctan2(point[:, 1], point[:, 0])
    turns = np.round((roll / 2 - roll_0) / period)
    return np.nan_to_num(roll_0 + turns * period)
