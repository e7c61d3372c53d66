"""What the robot executes, moment by moment: chunks that take over from one another by time.

Knows clocks (seconds, `time.monotonic`), actions and limits. Does not know models or messages.
Action i of a chunk is due at began + i * dt and stands until the next one's moment. The laws:
a moment that has passed is not executed, nor an action beyond the chunk's execution horizon H; two
commands in a row differ by no more than `max_joint_step`; every command is within the limits; who
has nothing new holds the last command. Not thread-safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from embodied_kv.types import ActionChunk

FRESH, PREVIOUS, HOLD, STOP = SOURCES = ('fresh', 'previous', 'hold', 'stop')
_TICK = 1e-9  # s; moments closer than this are the same


@dataclass(frozen=True, eq=False)
class TakeOver:
    """How a chunk was received.

    first: its first action whose moment has not passed; the chunk size where all have, or where it
    is older than the one that runs. values: float64 [chunk size, joints], the chunk as the robot
    could execute it; None where it was refused: for these two reasons, or as all that it allows
    to execute has passed. blended: a step was shortened to max_joint_step. clamped: values that
    were outside the limits; both of actions that are executed.
    """

    first: int
    values: np.ndarray | None = None
    blended: bool = False
    clamped: int = 0


@dataclass(frozen=True, eq=False)
class Setpoint:
    """The command of this moment.

    values: float64 [joints], or None before the first moment of the first chunk. age: s since the
    observation that it answers; inf where there was none.
    """

    values: np.ndarray | None
    source: str
    age: float


@dataclass
class Counters:
    """Since the start: the first three count chunks, clamped values, the rest periods."""

    takeovers: int = 0
    refused: int = 0
    blended: int = 0
    clamped: int = 0
    missed: int = 0
    held: int = 0
    stopped: int = 0


class TrajectoryExecutor:
    """The commands of one robot over time.

    dt: s between two actions. lower, upper: joint limits, or none. max_joint_step: between two
    commands, rad or m; each of the three is one number or [joints]. stop_after: missed periods in
    a row after which the robot is told to stop. Raises ValueError for limits that contradict each
    other.
    """

    def __init__(
        self,
        joints: int,
        dt: float,
        *,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        max_joint_step: ArrayLike = math.inf,
        stop_after: int = 5,
    ) -> None:
        self.joints, self.dt, self.stop_after = joints, dt, stop_after
        self.lower = self._per_joint('lower', -math.inf if lower is None else lower)
        self.upper = self._per_joint('upper', math.inf if upper is None else upper)
        self.max_joint_step = self._per_joint('max_joint_step', max_joint_step)
        if not (self.lower <= self.upper).all():
            raise ValueError(f'joint limits: lower {self.lower} is above upper {self.upper}')
        if not (self.max_joint_step > 0).all():
            raise ValueError(f'max_joint_step {self.max_joint_step} must be above 0')
        self.counters = Counters()
        self._handed: np.ndarray | None = None  # what `due` gave last
        self._now = -math.inf
        self._clear(None)

    def hold_at(self, state: ArrayLike) -> None:
        """Forget every chunk and command this position [joints], clamped to the limits.

        Raises ValueError for another shape or a value that is not finite.
        """
        state = np.asarray(state, np.float64)
        if state.shape != (self.joints,) or not np.isfinite(state).all():
            raise ValueError(f'a position to hold is {self.joints} finite numbers: got {state}')
        self._handed = None
        self._clear(np.clip(state, self.lower, self.upper))

    def take_over(self, chunk: ActionChunk, began: float, now: float) -> TakeOver:
        """From now on, execute this chunk: its first H actions, less those that have passed.

        began: the moment of its observation. Steps are shortened where they would jump. Raises
        ValueError for a chunk of another shape or dt, or not finite; what runs then goes on.
        """
        actions = self._actions(chunk.values)
        if not math.isclose(chunk.dt, self.dt):
            raise ValueError(f'a chunk has dt {self.dt} s: got {chunk.dt}')
        if not (np.isfinite(actions).all() and math.isfinite(began)):
            raise ValueError(f'chunk {chunk.sequence} is not finite')
        now = self._advance(now)
        moments = began + np.arange(len(actions)) * self.dt
        first = len(actions)
        if began >= self._began:
            first = int(np.searchsorted(moments, now - _TICK))
        end = len(actions) if chunk.execution_horizon is None else chunk.execution_horizon
        if first >= end:
            self.counters.refused += 1
            return TakeOver(first)
        values = np.clip(actions, self.lower, self.upper)
        clamped = int((values[first:end] != actions[first:end]).sum())
        self._base = self._command(now)
        steps = self._limit_steps(values[first:])
        blended = bool((steps[: end - first] != values[first:end]).any())
        self._plan, self._moments = steps[: end - first], moments[first:end]
        self._began = began
        self._source, self._misses = FRESH, 0
        values[first:] = steps
        self.counters.takeovers += 1
        self.counters.blended += blended
        self.counters.clamped += clamped
        return TakeOver(first, values, blended, clamped)

    def resume(self, values: ArrayLike, observed: float, now: float) -> None:
        """From now on, execute what was left of an earlier chunk, [n, joints]: never as fresh.

        observed: the moment of its observation; a chunk that answers a later one takes over from
        it. Steps are shortened where they would jump. Raises ValueError as `take_over` does.
        """
        actions = self._actions(values)
        if not (np.isfinite(actions).all() and math.isfinite(observed)):
            raise ValueError('what was left of a chunk is not finite')
        now = self._advance(now)
        self._base = self._command(now)
        self._plan = self._limit_steps(np.clip(actions, self.lower, self.upper))
        self._moments = now + np.arange(len(actions)) * self.dt
        self._began, self._source = observed, PREVIOUS

    def due(self, now: float) -> Setpoint:
        """The command for this moment, at most max_joint_step from the one given last."""
        now = self._advance(now)
        command, source = self._command(now), self._source_at(now)
        if command is not None and not (source == STOP and self._handed is not None):
            self._handed = self._step(self._handed, command)
        return Setpoint(self._handed, source, now - self._began)

    def remaining(self, now: float) -> tuple[np.ndarray, np.ndarray]:
        """The actions still to come, float64 [n, joints], and their moments in s from now, [n]."""
        now = self._advance(now)
        first = int(np.searchsorted(self._moments, now - _TICK))
        return self._plan[first:], np.maximum(self._moments[first:] - now, 0.0)

    def missed(self, now: float) -> str:
        """A period has ended without a fresh chunk: what the robot does instead.

        'previous' while the chunk lasts, up to its H, then 'hold'; from the `stop_after`th in a
        row on 'stop', which drops the rest of the chunk, until another takes over.
        """
        now = self._advance(now)
        self._misses += 1
        self.counters.missed += 1
        if self._misses >= self.stop_after and self._source != STOP:
            self._clear(self._command(now), self._began, STOP)
        elif self._source == FRESH:
            self._source = PREVIOUS
        source = self._source_at(now)
        self.counters.held += source == HOLD
        self.counters.stopped += source == STOP
        return source

    def _actions(self, values: ArrayLike) -> np.ndarray:
        actions = np.asarray(values, np.float64)
        if actions.ndim != 2 or actions.shape[1] != self.joints:
            raise ValueError(f'a chunk is [chunk size, {self.joints}]: got {list(actions.shape)}')
        return actions

    def _clear(
        self, base: np.ndarray | None, began: float = -math.inf, source: str = HOLD
    ) -> None:
        self._base = base  # commanded until the plan's first moment
        self._plan, self._moments = np.empty((0, self.joints)), np.empty(0)
        self._began, self._source = began, source
        if source == HOLD:
            self._misses = 0

    def _advance(self, now: float) -> float:
        """Time never runs back here, in whatever order two threads read the clock."""
        self._now = max(self._now, now)
        return self._now

    def _command(self, now: float) -> np.ndarray | None:
        passed = int(np.searchsorted(self._moments, now + _TICK, side='right'))
        return self._plan[passed - 1] if passed else self._base

    def _source_at(self, now: float) -> str:
        lasts = len(self._moments) and now < self._moments[-1] + self.dt - _TICK
        return self._source if lasts or self._source == STOP else HOLD

    def _limit_steps(self, actions: np.ndarray) -> np.ndarray:
        """The actions [n, joints] as they can be reached from the base, step by step."""
        plan, last = np.empty_like(actions), self._base
        for i, action in enumerate(actions):
            plan[i] = last = self._step(last, action)
        plan.flags.writeable = False  # views of it are handed out
        return plan

    def _step(self, last: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        if last is None:
            return target
        near = np.abs(target - last) <= self.max_joint_step
        return np.where(
            near, target, last + np.clip(target - last, -self.max_joint_step, self.max_joint_step)
        )

    def _per_joint(self, name: str, value: ArrayLike) -> np.ndarray:
        value = np.asarray(value, np.float64)
        if value.shape not in ((), (self.joints,)) or np.isnan(value).any():
            raise ValueError(f'{name} is one number or one per joint ({self.joints}): got {value}')
        return np.broadcast_to(value, (self.joints,))
