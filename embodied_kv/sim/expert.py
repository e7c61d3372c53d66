"""A scripted expert: what a good robot does next, from nothing but where everything is now.

Knows geometry and phases, in batches of tables. Keeps no state: so any moment, also one that went
wrong, can be labelled for any task. `plan` looks ahead by moving the arm and what it holds or
pushes in its mind, not in a simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from embodied_kv.sim.kinematics import forward, joint_limits, top_down
from embodied_kv.sim.scene import RECEPTACLES
from embodied_kv.sim.tabletop import Truth
from embodied_kv.sim.tasks import FAMILIES, HOVER, SIDE_LINE, SIDES, Task

SPEED, TURN = 0.02, 0.2  # m and rad per control period
CARRY, PUSHING = 0.16, 0.024  # m, heights of the gripper point
OPEN, APART, CLOSED = 0.04, 0.012, 0.0  # m, openings of one finger; APART cradles what is pushed
FINGERS = 0.015  # m that a finger moves in a control period
LOW = 0.10  # m; below it the gripper may hit things on its way
BEHIND = 0.030  # m between a thing's circle and the gripper point that is going to push it
REACH, PAD = joint_limits(), 0.011  # PAD: half of a finger's width, m


class Phase(IntEnum):
    """What the expert is doing; SUBTASKS says it in words."""

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


SUBTASKS = {
    Phase.HOLD: 'done, hold still',
    Phase.PUT_DOWN: 'put down the {held}',
    Phase.OPEN: 'open the gripper',
    Phase.ABOVE: 'move above the {x}',
    Phase.LOWER: 'lower to the {x}',
    Phase.CLOSE: 'close the gripper',
    Phase.LIFT: 'lift the {x}',
    Phase.CARRY: 'move above the {y}',
    Phase.PLACE: 'lower to the {y}',
    Phase.BESIDE: 'move beside the {x}',
    Phase.LOWER_BESIDE: 'lower beside the {x}',
    Phase.PUSH: 'push the {x} to the {side}',
    Phase.LOST: 'hold still, I do not understand',
}


def subtask(phase: int, task: Task | None, held: str) -> str:
    """The phase in words. task: None where the instruction has no meaning."""
    words = SUBTASKS[Phase(phase)]
    return words.format(x=task.target, y=task.place, side=task.side, held=held) if task else words


@dataclass(frozen=True, eq=False)
class Tables:
    """B tables at one moment, N things at most on each.

    things: float64 [B, N, 4] x, y, z in m and yaw in rad, NaN where there is none. size: float64
    [B, N, 3] m. round, receptacle: bool [B, N]. held: int [B], -1 for nothing.
    """

    things: np.ndarray
    size: np.ndarray
    round: np.ndarray
    receptacle: np.ndarray
    held: np.ndarray

    @classmethod
    def of(cls, truths: Sequence[Truth]) -> Tables:
        """The tables of so many moments."""
        most = max(len(truth.things) for truth in truths)
        things = np.full((len(truths), most, 4), np.nan)
        size = np.full((len(truths), most, 3), np.nan)
        kinds = np.zeros((2, len(truths), most), bool)
        held = np.full(len(truths), -1)
        for b, truth in enumerate(truths):
            for n, thing in enumerate(truth.things):
                things[b, n] = *thing.position, thing.yaw
                size[b, n] = thing.size
                kinds[:, b, n] = thing.shape == 'cylinder', thing.shape in RECEPTACLES
                if thing.name == truth.held:
                    held[b] = n
        return cls(things, size, *kinds, held)


@dataclass(frozen=True, eq=False)
class Orders:
    """B tasks as numbers.

    family: index in FAMILIES, -1 for an order that has no meaning. target, place: index of a
    thing (0 where the family has none). side: +1 left, -1 right. Each int [B].
    """

    family: np.ndarray
    target: np.ndarray
    place: np.ndarray
    side: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task | None], names: Sequence[Sequence[str]]) -> Orders:
        """names: of the things on each table, in order. Raises ValueError for an unknown one."""
        rows = [
            (
                FAMILIES.index(task.family),
                things.index(task.target),
                things.index(task.place) if task.place else 0,
                int(SIDES.get(task.side, 0)),
            )
            if task
            else (-1, 0, 0, 0)
            for task, things in zip(tasks, names, strict=True)
        ]
        return cls(*np.array(rows, int).reshape(-1, 4).T)


def plan(
    state: np.ndarray, tables: Tables, orders: Orders, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """The next `horizon` joint targets and the phase now.

    state: [B, 7] rad and m -> actions float32 [B, horizon, 7], absolute, and phases int [B].
    Action i is where the joints should be one control period after action i - 1.
    """
    joints = np.array(state, np.float64)
    actions = np.empty((len(joints), horizon, joints.shape[1]), np.float32)
    goals = []
    for i in range(horizon):
        goals.append(_decide(joints, tables, orders))
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


def _decide(joints: np.ndarray, tables: Tables, orders: Orders) -> Goal:
    """The phase of every table and what it aims at."""
    rows = np.arange(len(joints))
    p, roll, gap = forward(joints), joints[:, 5], joints[:, 6]
    thing, size = tables.things[rows, orders.target], tables.size[rows, orders.target]
    place, place_size = tables.things[rows, orders.place], tables.size[rows, orders.place]
    low = p[:, 2] < LOW
    family = {name: orders.family == i for i, name in enumerate(FAMILIES)}

    # what is held, and whether it is wanted
    holds = tables.held >= 0
    wanted = holds & (tables.held == orders.target) & (family['pick'] | family['put'])
    unwanted = holds & ~wanted & (orders.family >= 0)
    bottom = _bottom(tables)
    support = _support(tables)

    # a thing to be taken
    apart = _distance(p, thing)
    period = np.where(tables.round[rows, orders.target], np.nan, np.pi / 2)
    grasp_roll = _nearest_roll(thing[:, 3], thing, roll, period)
    height = np.maximum(thing[:, 2], 0.016)
    turned = np.abs(roll - grasp_roll) < 0.15
    aligned = (apart < np.where(low, 0.02, 0.012)) & turned
    ready = aligned & (apart < 0.012) & (np.abs(p[:, 2] - height) < 0.012)
    opened = gap > 0.032

    # a place to put it
    to_place = _distance(thing, place)
    release = place_size[:, 2] + np.where(place_size[:, 2] > 0.02, -0.005, 0.006)
    over = to_place < np.where(bottom < 0.06, 0.03, 0.012)
    placed = (to_place < 0.05) & (thing[:, 2] - size[:, 2] / 2 < 0.045)

    # a thing to be pushed
    side = orders.side.astype(float)
    radius = np.where(
        tables.round[rows, orders.target], size[:, 0] / 2, np.hypot(size[:, 0], size[:, 1]) / 2
    )
    start = thing[:, :2].copy()
    start[:, 1] -= side * (radius + BEHIND)
    along, lateral = (p[:, 1] - thing[:, 1]) * side, np.abs(p[:, 0] - thing[:, 0])
    push_roll = _nearest_roll(np.full(len(p), np.pi / 2), thing, roll, np.full(len(p), np.pi))
    pushing = (p[:, 2] < 0.06) & (lateral < 0.02) & (along < -0.012) & (-along < radius + 0.07)
    at_start = (_distance(p, start) < np.where(p[:, 2] < 0.08, 0.03, 0.015)) & (
        np.abs(roll - push_roll) < 0.2
    )
    aside = side * thing[:, 1] > SIDE_LINE

    take = (family['pick'] | family['put']) & ~wanted
    rules = (  # the first that holds decides
        (orders.family < 0, Phase.LOST),
        (unwanted & (bottom > support + 0.012), Phase.PUT_DOWN),
        (unwanted, Phase.OPEN),
        (family['reach'] & (apart < 0.012) & (np.abs(p[:, 2] - HOVER) < 0.02), Phase.HOLD),
        (family['reach'], Phase.ABOVE),
        (family['put'] & ~wanted & placed, Phase.HOLD),
        (take & ready, Phase.CLOSE),
        (take & aligned, Phase.LOWER),
        (take, Phase.ABOVE),
        (family['pick'] & (p[:, 2] > CARRY - 0.02), Phase.HOLD),
        (family['pick'], Phase.LIFT),
        (family['put'] & over & (bottom < release + 0.008), Phase.OPEN),
        (family['put'] & over, Phase.PLACE),
        (family['put'] & (p[:, 2] < CARRY - 0.04), Phase.LIFT),
        (family['put'], Phase.CARRY),
        (aside, Phase.HOLD),
        (pushing, Phase.PUSH),
        (at_start, Phase.LOWER_BESIDE),
    )
    phase = np.select([when for when, _ in rules], [then for _, then in rules], Phase.BESIDE)

    def at(xy: np.ndarray, z: np.ndarray | float) -> np.ndarray:
        return np.column_stack([xy[:, :2], np.broadcast_to(z, len(p))])

    def clear_of_things(point: np.ndarray) -> np.ndarray:
        """Straight up first, from where things would be in the way."""
        up = low & (_distance(p, point) > 0.03)
        return np.where(up[:, None], at(p, HOVER), point)

    step = at(p, PUSHING)
    step[:, 0], step[:, 1] = thing[:, 0], p[:, 1] + side * SPEED
    carried = thing.copy()
    carried[:, :2] += np.where(wanted[:, None], p[:, :2] - thing[:, :2], 0)
    onto = place[:, :2] + p[:, :2] - thing[:, :2]
    held_up = family['pick'] & wanted
    points = {
        Phase.HOLD: np.where(held_up[:, None], at(p, CARRY), at(p, HOVER)),
        Phase.PUT_DOWN: at(p, p[:, 2] - (bottom - support) + 0.004),
        Phase.OPEN: p,
        Phase.ABOVE: clear_of_things(at(thing, HOVER)),
        Phase.LOWER: at(thing, np.where(opened, height, np.maximum(p[:, 2], 0.09))),
        Phase.CLOSE: at(thing, height),
        Phase.LIFT: at(p, CARRY),
        Phase.CARRY: at(onto, CARRY),
        Phase.PLACE: at(onto, p[:, 2] - bottom + release),
        Phase.BESIDE: clear_of_things(at(start, HOVER)),
        Phase.LOWER_BESIDE: at(start, PUSHING),
        Phase.PUSH: step,
        Phase.LOST: p,
    }
    shut = np.isin(
        phase, (Phase.CLOSE, Phase.LIFT, Phase.CARRY, Phase.PLACE, Phase.PUT_DOWN)
    ) | (held_up & (phase == Phase.HOLD))
    cradle = family['push'] & (phase != Phase.OPEN) & ~((phase == Phase.BESIDE) & low)
    lost = phase == Phase.LOST
    grasping = np.isin(phase, (Phase.LOWER, Phase.CLOSE)) | (take & (phase == Phase.ABOVE))
    beside = np.isin(phase, (Phase.BESIDE, Phase.LOWER_BESIDE, Phase.PUSH))
    level = np.isin(phase, (Phase.ABOVE, Phase.CARRY))
    return Goal(
        point=np.select([(phase == k)[:, None] for k in points], list(points.values())),
        roll=np.select([grasping, beside, level], [grasp_roll, push_roll, 0 * roll], roll),
        opening=np.select([lost & ~holds, shut | lost, cradle], [gap, CLOSED, APART], OPEN),
        phase=phase,
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
    rest = _support(replace(tables, things=things, held=held)) + tables.size[rows, index, 2] / 2
    things[rows, index, 2] = np.where(dropped, rest, things[rows, index, 2])
    held = np.where(dropped, -1, held)

    side = orders.side
    contact = PAD + half
    overlap = (after[:, 1] - things[rows, orders.target, 1]) * side + contact
    pushed = np.where((phase == Phase.PUSH) & (overlap > 0), overlap * side, 0)
    things[rows, orders.target, 1] += pushed
    joints = np.column_stack([command[:, :6], gap])
    return joints, replace(tables, things=things, held=held)


def _bottom(tables: Tables) -> np.ndarray:
    """Height [B] of the lower side of what is held."""
    rows, index = np.arange(len(tables.held)), np.maximum(tables.held, 0)
    return tables.things[rows, index, 2] - tables.size[rows, index, 2] / 2


def _support(tables: Tables) -> np.ndarray:
    """Height [B] of what is under the held thing: the table, or a receptacle."""
    rows, index = np.arange(len(tables.held)), np.maximum(tables.held, 0)
    apart = tables.things[..., :2] - tables.things[rows, index][:, None, :2]
    under = tables.receptacle & (np.hypot(apart[..., 0], apart[..., 1]) < 0.09)
    return np.where(under, tables.size[..., 2], 0).max(1)


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
