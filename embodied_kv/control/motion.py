"""Plan motions from the state of the arm through actions to standstill, within the limits.

Time 0 is the start of a motion. The acceleration is constant between two nodes, so that

    p' = p + (v + v') / 2 dt

holds from node to node. A cubic spline through the positions and velocities of the nodes, as a
joint_trajectory_controller computes it, is therefore the same motion. Every motion ends at rest.

Invariants at every moment, not only at the nodes: |a| <= A, |v| <= V, and room to brake,

    p + v^2 / (2 A) <= upper   while v > 0, and likewise for the lower limit.

They hold for every start that satisfies them, so that a motion may be replaced or braked at any
moment. From a start outside the position limits, the arm stays there or moves inwards. From a
start above the velocity limit, it brakes at the acceleration limit.

The controller of each step uses the distance that would be left after the step at the velocity of
the reference; see `_approach`. This is the discrete time-optimal control of a double integrator
(Han and Yuan 1999, `fhan` of the tracking differentiator) around a moving reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from embodied_kv.control.limits import Limits

STEP = 0.02  # s between two nodes, at most
SPARE = 0.25  # smallest share of the acceleration that is reserved to correct errors
_TICK = 1e-9  # s; moments closer than this are the same
_APART = 1e-6  # s between two nodes, at least: messages count whole nanoseconds


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion as nodes, between which the acceleration is constant.

    Args:
        times: [n] Times (s) of the nodes; the first is 0.
        positions: float64 [n, joints] (rad or m).
        velocities: float64 [n, joints] (rad/s or m/s); the last are 0, so that the arm stays at
            the last position.
    """

    times: np.ndarray
    positions: np.ndarray
    velocities: np.ndarray

    @property
    def duration(self) -> float:
        """Return the time (s) until the arm is at rest."""
        return float(self.times[-1])

    def at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return position and velocity [joints] at a time; before 0 those of the first node."""
        positions, velocities = self.sample(np.array([time]))
        return positions[0], velocities[0]

    def sample(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities [m, joints] at times [m]."""
        if len(self.times) == 1:
            shape = (len(times), self.positions.shape[1])
            return np.broadcast_to(self.positions[0], shape), np.zeros(shape)
        times = np.clip(times, 0.0, self.times[-1])
        node = np.searchsorted(self.times, times, side='right').clip(1, len(self.times) - 1) - 1
        since = (times - self.times[node])[:, None]
        share = since / (self.times[node + 1] - self.times[node])[:, None]
        before = self.velocities[node]
        velocities = before + share * (self.velocities[node + 1] - before)
        return self.positions[node] + (before + velocities) / 2 * since, velocities

    def after(self, time: float, lead: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return times from `time` on, positions and velocities of the remaining nodes.

        Nodes closer than `lead` (s) are left out, because a controller needs that long to join in.
        The last node is always included, at least `lead` ahead.
        """
        times = self.times - time
        first = min(int(np.searchsorted(times, lead - _TICK)), len(times) - 1)
        times = np.maximum(times[first:], lead)
        return times, self.positions[first:], self.velocities[first:]

    def until(self, node: int, limits: Limits) -> Motion:
        """Return the motion up to a node, followed by braking."""
        stop = brake(self.positions[node], self.velocities[node], limits)
        return Motion(
            np.append(self.times[: node + 1], self.times[node] + stop.times[1:]),
            np.concatenate([self.positions[: node + 1], stop.positions[1:]]),
            np.concatenate([self.velocities[: node + 1], stop.velocities[1:]]),
        )


def acceleration(limits: Limits) -> np.ndarray:
    """Return the accelerations [joints] that motions use.

    They are reduced where the limit would reach the velocity limit within 1.5 steps. Then no step
    within |a| <= A leads beyond |v| <= V from standstill.
    """
    return np.minimum(limits.acceleration, limits.velocity / (1.5 * STEP))


def stay(position: np.ndarray) -> Motion:
    """Return the motion of an arm that stands at a position [joints]."""
    return Motion(np.zeros(1), position[None], np.zeros((1, len(position))))


def bounded(motion: Motion, first: float, until: float, limits: Limits) -> tuple[Motion, float]:
    """Return the motion cut so that it is at rest by a moment, and the moment of the cut.

    Args:
        motion: The motion.
        first: The cut is not before this moment (s).
        until: The moment (s) by which the result is at rest, unless braking takes longer.
        limits: The limits to brake within.

    Returns:
        The motion and inf if it ends by then. Otherwise the motion up to the last node from
        which the arm can brake by then, followed by braking, and the moment of that node.
    """
    if motion.duration <= until:
        return motion, math.inf
    rests = motion.times + (np.abs(motion.velocities) / acceleration(limits)).max(axis=1)
    fits = np.flatnonzero(rests <= until)
    least = int(np.searchsorted(motion.times, first))
    node = min(max(int(fits[-1]) if len(fits) else 0, least), len(motion.times) - 1)
    return motion.until(node, limits), float(motion.times[node])


def brake(position: np.ndarray, velocity: np.ndarray, limits: Limits) -> Motion:
    """Return the motion in which each joint brakes at its acceleration limit to standstill."""
    position, velocity = np.asarray(position, np.float64), np.asarray(velocity, np.float64)
    lasts = np.ceil(np.abs(velocity) / acceleration(limits) / _APART) * _APART
    slowing = np.divide(velocity, lasts, out=np.zeros_like(velocity), where=lasts > 0)
    times = np.unique(np.append(0.0, lasts))[:, None]
    went = np.minimum(times, lasts)
    velocities = np.where(times < lasts, velocity - slowing * times, 0.0)
    return Motion(times[:, 0], position + velocity * went - slowing * went**2 / 2, velocities)


def follow(
    position: np.ndarray,
    velocity: np.ndarray,
    actions: np.ndarray,
    due: float,
    dt: float,
    limits: Limits,
) -> Motion:
    """Return the motion from a state through actions to rest.

    A position is reached at its moment. A velocity is kept for dt from its moment on.

    Args:
        position, velocity: [joints] The state at time 0.
        actions: [n, joints], within the limits.
        due: Time (s) until the moment of the first action. If it is negative, the first action
            only defines the path to the next one.
        dt: Time (s) between two actions.
        limits: The limits of the robot.
    """
    position, velocity = np.array(position, np.float64), np.array(velocity, np.float64)
    times = _grid(due, dt, len(actions) - 1 + bool(limits.by_velocity.any()))
    reference = _Reference(actions, due, dt, limits)
    steer = _Steering(times, *reference.sample(times), reference.tracked(times), limits)
    positions, velocities = [position], [velocity]
    for node in range(1, len(times)):
        after = steer(node, position, velocity)
        position = position + (velocity + after) * (steer.steps[node] / 2)
        velocity = after
        positions.append(position)
        velocities.append(velocity)
    motion = Motion(times, np.array(positions), np.array(velocities))
    return motion.until(len(times) - 1, limits)


def _grid(due: float, dt: float, intervals: int) -> np.ndarray:
    """Return node times from 0 to the end of the last action, with nodes at all actions."""
    parts = math.ceil(dt / STEP - _TICK)
    times = due + np.arange(intervals * parts + 1) * dt / parts
    return np.append(0.0, times[times > dt / parts / 2])


class _Reference:
    """The path through the actions, regardless of acceleration limits."""

    def __init__(self, actions: np.ndarray, due: float, dt: float, limits: Limits) -> None:
        self._actions, self._due, self._dt, self._limits = actions, due, dt, limits
        self._slopes = np.clip(_slopes(actions, dt), -limits.velocity, limits.velocity)
        self.ends = due + (len(actions) - 1) * dt

    def sample(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities [m, joints] at times [m].

        The positions of velocity outputs have no meaning.
        """
        place = (times - self._due) / self._dt
        row = np.clip(np.floor(place + _TICK / self._dt), 0, len(self._actions) - 1).astype(int)
        until = np.minimum(row + 1, len(self._actions) - 1)
        x = np.clip(place - row, 0.0, 1.0)[:, None]
        first, last = self._actions[row], self._actions[until]
        way = last - first
        start, end = self._slopes[row] * self._dt, self._slopes[until] * self._dt
        bend = (3 - 2 * x) * x**2  # a cubic with both positions and velocities
        positions = first + bend * way + x * (1 - x) * ((1 - x) * start - x * end)
        velocities = 6 * x * (1 - x) * way + (1 - x) * (1 - 3 * x) * start - x * (2 - 3 * x) * end
        velocities = velocities / self._dt
        outside = (times < self._due - _TICK) | (times > self.ends + _TICK)
        velocities[outside] = 0.0
        # A velocity lasts until the next action, so a node has that of the step before it.
        kept = np.clip(np.ceil(place - _TICK / self._dt) - 1, 0, len(self._actions) - 1)
        return positions, np.where(
            self._limits.by_velocity, self._actions[kept.astype(int)], velocities
        )

    def tracked(self, times: np.ndarray) -> np.ndarray:
        """Return which positions are to be reached: bool [m, joints]."""
        return ~self._limits.by_velocity & (times <= self.ends + _TICK)[:, None]


def _slopes(actions: np.ndarray, dt: float) -> np.ndarray:
    """Return velocities [n, joints] at the actions: limited central differences.

    They are at most three times the adjacent slopes, and zero at an extremum, so that the cubics
    do not overshoot the actions (Fritsch and Carlson 1980).
    """
    slopes = np.zeros_like(actions)
    if len(actions) > 1:
        ways = np.diff(actions, axis=0) / dt
        before, after = ways[:-1], ways[1:]
        bound = 3 * np.minimum(np.abs(before), np.abs(after))
        central = np.clip((before + after) / 2, -bound, bound)
        slopes[1:-1] = np.where(before * after > 0, central, 0.0)
        slopes[0], slopes[-1] = ways[0], ways[-1]
    return slopes


class _Steering:
    """Controller that returns the velocity at the end of each step.

    Args:
        times: [m] Times (s) of the nodes.
        positions, feed: [m, joints] Positions and velocities of the reference at the nodes.
        tracked: bool [m, joints], whether the position is to be reached, not only the velocity.
        limits: The limits of the robot.
    """

    def __init__(
        self,
        times: np.ndarray,
        positions: np.ndarray,
        feed: np.ndarray,
        tracked: np.ndarray,
        limits: Limits,
    ) -> None:
        self.steps = np.diff(times, prepend=0.0)
        h, most = self.steps[:, None], acceleration(limits)
        self._feed, self._tracked, self._limits = feed, tracked, limits
        self._most, self._longest = most, np.maximum(self.steps, self.steps[-1])
        # Goals ahead of the arm: the reference and both position limits. [m, 3, joints]
        self._goals = np.empty((len(times), 3, len(limits)))
        self._goals[:, 0] = positions - feed * h / 2
        self._goals[:, 1], self._goals[:, 2] = limits.upper, -limits.lower
        self._signs = np.array([1.0, 1.0, -1.0])[:, None]
        self._brakes = np.empty_like(self._goals)
        self._brakes[:] = most
        self._brakes[:, 0] = self._spare(np.diff(feed, axis=0) / h[1:])
        self._enough = 4 * (limits.velocity**2 / most + limits.velocity * STEP)

    def _spare(self, used: np.ndarray) -> np.ndarray:
        """Return the acceleration [m, joints] that the rest of the reference leaves for errors."""
        rest = np.abs(np.concatenate([np.zeros((1, used.shape[1])), used]))
        rest = np.maximum.accumulate(rest[::-1])[::-1]
        return np.maximum(self._most - rest, SPARE * self._most)

    def __call__(self, node: int, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the velocity [joints] closest to the reference within the limits."""
        h, fastest, hardest = (
            self.steps[node],
            self._limits.velocity,
            self._most * self.steps[node],
        )
        ahead = self._goals[node] - self._signs * (position + velocity * (h / 2))
        left = np.maximum(ahead, 0.0)
        left[0] = np.abs(ahead[0])
        reach = _approach(np.minimum(left, self._enough), self._brakes[node], self._longest[node])
        aim = self._feed[node] + np.copysign(reach[0], ahead[0]) * self._tracked[node]
        high, low = np.minimum(reach[1], fastest), np.maximum(-reach[2], -fastest)
        if (ahead[1:] < 0).any():
            high = self._turn(self._limits.upper - position, velocity, h, high)
            low = -self._turn(position - self._limits.lower, -velocity, h, -low)
        aim = np.minimum(np.maximum(aim, low), high)
        return np.minimum(np.maximum(aim, velocity - hardest), velocity + hardest)

    def _turn(
        self, room: np.ndarray, velocity: np.ndarray, h: float, high: np.ndarray
    ) -> np.ndarray:
        """Return `high`, or a velocity that turns before a limit inside the braking distance."""
        near = (velocity > 0) & (room > 0) & (room < velocity * h / 2)
        return np.where(near, velocity - velocity**2 * h / (2 * np.where(near, room, 1.0)), high)


def _approach(left: np.ndarray, brakes: np.ndarray, h: float) -> np.ndarray:
    """Return the velocity at the end of a step from which steps of h can brake within `left`.

    `left` >= 0 is the distance that would be left after the step without this velocity. With k,
    the number of whole steps of braking at A that fit, the result is
    left / ((k + 1) h) + k A h / 2, the largest u with

        u h / 2 + (braking distance from u in steps of h) <= left.
    """
    unit = brakes * h
    steps = np.floor(np.sqrt(0.25 + 2 * left / (unit * h)) - 0.5)
    return left / ((steps + 1) * h) + steps * unit / 2
