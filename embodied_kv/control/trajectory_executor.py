"""What the robot executes, moment by moment: chunks that take over from one another by time.

Knows clocks (seconds, `time.monotonic`), actions, limits and where the arm was measured. Does not
know models, messages or who may move the arm. Action i of a chunk is due at began + i * dt. The
laws: the measured position is where the robot is, and without one nothing moves; a moment that has
passed is not executed, nor an action beyond the chunk's execution horizon H; every motion keeps
the limits and ends at rest; who has nothing new stands. Not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from embodied_kv.control.command import (
    FRESH,
    HOLD,
    PREVIOUS,
    SOURCES,
    STOP,
    Counters,
    Leftover,
    Measured,
    Setpoint,
    TakeOver,
)
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion, brake, follow
from embodied_kv.control.plan import Plan
from embodied_kv.control.tracking import Course
from embodied_kv.types import ActionChunk

__all__ = ['FRESH', 'HOLD', 'PREVIOUS', 'SOURCES', 'STOP', 'TrajectoryExecutor']

LEAD = 0.04  # s that a trajectory controller has to join in a motion which it is sent
PAUSE = 0.1  # s without a set-point after which an arm that follows them stands
FOLLOWED = 1e-3  # rad, m, or either per s: an action is followed that is met so closely
_TICK = 1e-9  # s; moments closer than this are the same

Confine = Callable[[Motion], 'Motion | None']


class TrajectoryExecutor:
    """The motion of one robot over time.

    dt: s between two actions. max_tracking_error: how far the arm may be from where it was sent,
    rad or m, one number or [joints]; it counts where actions are positions. max_state_age: s that
    a measured position is worth. stop_after: missed periods in a row after which the rest of the
    chunk is dropped. confine: makes a motion end before it leaves a workspace, or finds that it
    cannot: None. Raises ValueError for numbers that cannot be.
    """

    def __init__(
        self,
        limits: Limits,
        dt: float,
        *,
        max_tracking_error: ArrayLike,
        max_state_age: float = 0.5,
        stop_after: int = 5,
        confine: Confine = lambda motion: motion,
    ) -> None:
        self.limits, self.dt, self.stop_after = limits, dt, stop_after
        self._confine = confine
        self.counters = Counters()
        self._course = Course(limits, max_tracking_error, max_state_age)
        self._now = -math.inf
        self.plan, self._source, self._misses = Plan.nothing(len(limits)), HOLD, 0

    @property
    def joints(self) -> int:
        return len(self.limits)

    # ------------------------------------------------------------------ what to do

    def take_over(
        self,
        chunk: ActionChunk,
        began: float,
        now: float,
        measured: Measured | None,
        observed: float | None = None,
    ) -> TakeOver:
        """From now on, execute this chunk: its first H actions, less those that have passed.

        began: the moment of its first action. observed: of its observation, if that is another.
        It goes on from the motion that runs, else from where the arm was measured. Raises
        ValueError for a chunk of another shape or dt, or not finite; what runs then goes on, as it
        does when the chunk is refused.
        """
        observed = began if observed is None else observed
        actions = self._actions(chunk.values)
        if not math.isclose(chunk.dt, self.dt):
            raise ValueError(f'a chunk has dt {self.dt} s: got {chunk.dt}')
        if not (np.isfinite(actions).all() and math.isfinite(began + observed)):
            raise ValueError(f'chunk {chunk.sequence} is not finite')
        now = self._advance(now)
        moments = began + np.arange(len(actions)) * self.dt
        end = len(actions) if chunk.execution_horizon is None else chunk.execution_horizon
        first = int(np.searchsorted(moments, now - _TICK))
        if observed < self.plan.observed:
            return self._refuse(len(actions), 'a chunk of a later observation runs already')
        if first >= end:
            count = f'all {end} actions of its execution horizon'
            return self._refuse(first, f'{count} have passed')
        values = self.limits.clip(actions)
        reason = self._run(values[:end], began, now, measured)
        if reason:
            return self._refuse(first, reason)
        source = Leftover(values[:0], chunk.stamp, 0.0, chunk.sequence, chunk.steps)
        self._follow(source, values[first:end], moments[first:end], observed, now)
        self._source, self._misses = FRESH, 0
        clamped, blended = int((values != actions)[first:end].sum()), not self._is_followed()
        self.counters.takeovers += 1
        self.counters.blended += blended
        self.counters.clamped += clamped
        return TakeOver(first, values, blended, clamped)

    def resume(
        self, leftover: Leftover, observed: float, now: float, measured: Measured | None
    ) -> str:
        """From now on, execute what was left of an earlier chunk: never as fresh.

        It sets out from where the arm was measured, so its first action is due after dt. observed:
        the moment of its observation; a chunk that answers a later one takes over from it. Returns
        why not, or ''. Raises ValueError as `take_over` does.
        """
        actions = self._actions(leftover.values)
        if not (len(actions) and np.isfinite(actions).all() and math.isfinite(observed)):
            raise ValueError('what was left of a chunk is empty or not finite')
        now = self._advance(now)
        actions = self.limits.clip(actions)
        reason = self._run(actions, now + self.dt, now, measured)
        if not reason:
            moments = now + (1 + np.arange(len(actions))) * self.dt
            self._follow(leftover, actions, moments, observed, now)
            self._source, self._misses = PREVIOUS, 0
        return reason

    def brake(self, now: float, source: str) -> None:
        """Come to rest along the way, as `source`, HOLD or STOP; the chunk's rest is dropped."""
        now = self._advance(now)
        if self.is_moving(now):
            self._course.set(brake(*self._course.at(now), self.limits), now)
        self.plan, self._source = self.plan.ended(), source

    def catch_up(self, last: float, due: float, now: float) -> None:
        """Who is sent set-points stands at the last one until the next: that one is late.

        last, due: the moments of the last one and of the next. What is to come is so much later;
        after PAUSE the arm has come to rest, and the rest of the chunk is dropped.
        """
        late = self._advance(now) - due
        if late > PAUSE:
            self._course.halt(last)
            self.plan = self.plan.ended()
        else:
            self._course.delay(late)
            self.plan = self.plan.later(late)

    def drop(self) -> None:
        """Somebody else moves the arm: nothing was commanded."""
        self._course.clear()
        self.plan, self._source = self.plan.ended(), HOLD

    def goes_on(self, now: float) -> str:
        """Nothing fresh was due yet: 'previous', while the chunk lasts."""
        self._misses = 0
        if self._source == FRESH:
            self._source = PREVIOUS
        return self.source(now)

    def missed(self, now: float) -> str:
        """A period has ended without a fresh chunk: what the robot does instead.

        'previous' while the chunk lasts, up to its H, then 'hold'; from the `stop_after`th in a
        row on 'stop', which drops the rest of the chunk, until another takes over.
        """
        now = self._advance(now)
        misses = self._misses + 1
        self.counters.missed += 1
        if misses >= self.stop_after and self._source != STOP:
            self.brake(now, STOP)
        source, self._misses = self.goes_on(now), misses
        self.counters.held += source == HOLD
        self.counters.stopped += source == STOP
        return source

    # ------------------------------------------------------------------ what is done

    def is_moving(self, now: float) -> bool:
        """Whether the arm is not to stand yet."""
        return self._advance(now) < self._course.ends - _TICK

    @property
    def ends(self) -> float:
        """The moment from which on the arm is to stand; -inf if it never was to move."""
        return self._course.ends

    def source(self, now: float) -> str:
        """One of SOURCES."""
        return self._source if self.lasts(now) or self._source == STOP else HOLD

    def lasts(self, now: float) -> bool:
        """Whether something of a chunk is still to be executed, up to its H."""
        return self.plan.lasts(self._advance(now), self.dt)

    def due(self, now: float) -> Setpoint:
        """The command for this moment."""
        now = self._advance(now)
        age, source = now - self.plan.observed, self.source(now)
        if not self._course:
            return Setpoint(None, None, None, source, age)
        position, velocity = self._course.at(now)
        return Setpoint(self._told(position, velocity), position, velocity, source, age)

    def remaining(self, now: float) -> tuple[np.ndarray, np.ndarray]:
        """The actions still to come, float64 [n, joints], and their moments in s from now, [n]."""
        return self.plan.remaining(self._advance(now))

    def rows(self, observed: float, count: int, now: float) -> np.ndarray | None:
        """What is executed at observed + i * dt: see `Plan.rows`. From any thread."""
        return self.plan.rows(observed, self.dt, count, now, self.limits.by_velocity)

    def points(self, now: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The motion to come, for a trajectory controller: see `Motion.after`."""
        return self._course.after(self._advance(now), LEAD)

    def rest(self) -> np.ndarray:
        """Where the arm comes to rest: float64 [1, joints]; [0, joints] if nobody knows."""
        return self._course.rest()

    def lost(self, now: float, measured: Measured | None) -> str:
        """Why it is not known where the arm is; '' if it is."""
        return self._course.lost(max(self._now, now), measured)

    def strayed(self, now: float, measured: Measured | None) -> str:
        """Which joint is not where it was sent, while the arm moves; '' if none is."""
        moving = self.is_moving(now) and measured is not None
        return self._course.strayed(measured) if moving else ''

    # ------------------------------------------------------------------

    def _run(
        self, actions: np.ndarray, began: float, now: float, measured: Measured | None
    ) -> str:
        """The motion through actions of which the first is due at `began`. Returns why not."""
        missing = self.lost(now, measured)
        if missing:
            return missing
        position, velocity = self._course.base(now, measured)
        motion = follow(position, velocity, actions, began - now, self.dt, self.limits)
        motion = self._confine(motion)
        if motion is None:
            return 'it leaves the workspace'
        self._course.set(motion, now)
        return ''

    def _is_followed(self) -> bool:
        positions, _ = self._course.sample(self.plan.moments)
        _, velocities = self._course.sample(self.plan.moments + self.dt - _TICK)  # kept till then
        met = self._told(positions, velocities)
        return bool((np.abs(met - self.plan.actions) <= FOLLOWED).all())

    def _told(self, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
        """Of each output its kind."""
        return np.where(self.limits.by_velocity, velocities, positions)

    def _follow(
        self,
        source: Leftover,
        actions: np.ndarray,
        moments: np.ndarray,
        observed: float,
        now: float,
    ) -> None:
        """The motion that has just begun leads through these."""
        here = self._told(*self._course.at(now))
        self.plan = self.plan.then(source, actions, moments, observed, now, here)

    def _actions(self, values: ArrayLike) -> np.ndarray:
        actions = np.asarray(values, np.float64)
        if actions.ndim != 2 or actions.shape[1] != self.joints:
            raise ValueError(f'a chunk is [chunk size, {self.joints}]: got {list(actions.shape)}')
        return actions

    def _refuse(self, first: int, reason: str) -> TakeOver:
        self.counters.refused += 1
        return TakeOver(first, reason=reason)

    def _advance(self, now: float) -> float:
        """Time never runs back here, in whatever order two threads read the clock."""
        self._now = max(self._now, now)
        return self._now
