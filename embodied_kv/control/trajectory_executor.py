"""The motion of one robot over time: chunks take over from one another by time.

Moments are in seconds. Action i of a chunk is due at began + i * dt. Invariants:

- Every motion starts from a known position of the arm; without a measurement nothing moves.
- An action whose moment has passed, or that is beyond the execution horizon H, is not executed.
- Every motion keeps the limits and ends at rest. Without a newer chunk the arm stands.
- A chunk whose first action is far from the arm, or with many values far outside the limits, is
  refused.
- The reference trajectory waits for the arm; see `tracking`.

The executor is not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.control.chunk_plausibility import implausible, unwrapped
from embodied_kv.control.command import (
    FRESH,
    HOLD,
    PREVIOUS,
    STOP,
    ActionPlan,
    Counters,
    LeftoverActions,
    Measured,
    Setpoint,
    TakeOver,
)
from embodied_kv.control.join import Join
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion, brake, follow
from embodied_kv.control.tracking import (
    STANDS,
    ReferenceTrajectory,
    TrackingMonitor,
    first_action_bounds,
    tolerances,
)
from embodied_kv.types import ActionChunk

LEAD = 0.04  # s that a trajectory controller has to join a motion that it receives
STALE = 0.2  # s after which a measured position is not used to brake or to hand over
PAUSED_SPEED = 0.01  # speed scaling at which the robot counts as paused
PAUSE = 0.1  # s without a set-point after which the arm counts as standing
FOLLOWED = 1e-3  # rad, m, rad/s or m/s: largest distance from an action that is followed
_TICK = 1e-9  # s; moments closer than this are the same

Confine = Callable[[Motion], 'Motion | None']


class TrajectoryExecutor:
    """Executor of chunks within the limits of one robot.

    Args:
        limits: The limits of the robot.
        dt: Time (s) between two actions.
        max_tracking_error: Tolerance (rad or m) between the measured arm and its reference; one
            number or [joints]. inf: none, as for a gripper. NaN: derived; see
            `tracking.tolerances`.
        max_relative_target: Largest distance (rad or m) of the first action of a chunk from the
            measured position; one number or [joints]. NaN: derived; see
            `tracking.first_action_bounds`.
        linear: bool [joints], whether a joint is measured in m.
        max_joint_state_age: Longest time (s) for which a measured position is used.
        max_open_loop: Longest duration (s) of a motion that is sent to a controller.
        missed_chunk_limit: Missed periods in a row after which the rest of the chunk is dropped.
        confine: Makes a motion end before it leaves a workspace, or returns None if it cannot.

    Raises:
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        limits: Limits,
        dt: float,
        *,
        max_tracking_error: ArrayLike,
        max_relative_target: ArrayLike = math.inf,
        linear: ArrayLike = False,
        max_joint_state_age: float = 0.5,
        max_open_loop: float = 1.0,
        missed_chunk_limit: int = 5,
        confine: Confine = lambda motion: motion,
    ) -> None:
        self.limits, self.dt, self.missed_chunk_limit = limits, dt, missed_chunk_limit
        self.max_open_loop, self._confine = max_open_loop, confine
        self.counters = Counters()
        self._reference = ReferenceTrajectory(limits)
        allowed = tolerances(limits, max_tracking_error, linear)
        self._tracking = TrackingMonitor(self._reference, limits, allowed, max_joint_state_age)
        self._nearest = first_action_bounds(limits, max_relative_target, linear, allowed)
        self._now = self._monitored = -math.inf
        self.cut = math.inf  # moment at which the points that were sent leave the motion
        self.waits = False  # whether the reference waits for the arm
        self._speed = 1.0  # speed scaling of the controller at the last `monitor`
        self.plan, self._source, self._misses = ActionPlan.empty(len(limits)), HOLD, 0
        self._unknown = np.zeros(len(limits), bool)  # positions of the reference that mean nothing

    @property
    def joints(self) -> int:
        return len(self.limits)

    # ------------------------------------------------------------------ control

    def take_over(
        self,
        chunk: ActionChunk,
        began: float,
        now: float,
        measured: Measured | None,
        observed: float | None = None,
    ) -> TakeOver:
        """Execute the first H actions of a chunk from now on, without those that have passed.

        The motion starts from the running motion, otherwise from the measured position. If the
        chunk is refused, also by a ValueError, the running motion continues.

        Args:
            chunk: The chunk.
            began: Moment of its first action.
            now: The moment.
            measured: The measured arm, if it is known.
            observed: Moment of its observation, if it differs from `began`.

        Raises:
            ValueError: The chunk has another shape or dt, or is not finite.
        """
        observed = began if observed is None else observed
        actions = self._actions(chunk.values)
        if not math.isclose(chunk.dt, self.dt):
            raise ValueError(f'dt of a chunk must be {self.dt} s (got {chunk.dt})')
        if not (np.isfinite(actions).all() and math.isfinite(began + observed)):
            raise ValueError(f'chunk {chunk.sequence} must be finite')
        now = self._advance(now)
        moments = began + np.arange(len(actions)) * self.dt
        end = len(actions) if chunk.execution_horizon is None else chunk.execution_horizon
        first = int(np.searchsorted(moments, now - _TICK))
        if observed < self.plan.observed:
            return self._refuse(len(actions), 'a chunk of a later observation runs already')
        if first >= end:
            count = f'all {end} actions of its execution horizon'
            return self._refuse(first, f'{count} have passed')
        actions = unwrapped(actions, measured, self.limits)
        values = self.limits.clip(actions)
        reason = implausible(actions[first:end], measured, self.limits, self._nearest)
        reason = reason or self._run(values[:end], began, now, measured)
        if reason:
            return self._refuse(first, reason)
        source = LeftoverActions(values[:0], chunk.stamp, 0.0, chunk.sequence, chunk.steps)
        self._follow(source, values[first:end], moments[first:end], observed, now)
        self._source, self._misses = FRESH, 0
        clamped, blended = int((values != actions)[first:end].sum()), not self._is_followed()
        self.counters.takeovers += 1
        self.counters.blended += blended
        self.counters.clamped += clamped
        return TakeOver(first, values, blended, clamped)

    def resume(
        self, leftover: LeftoverActions, observed: float, now: float, measured: Measured | None
    ) -> str:
        """Execute leftover actions of an earlier chunk from now on, as PREVIOUS.

        The first action is due after dt, because the motion starts at the measured position.

        Args:
            leftover: The actions.
            observed: Moment of their observation. A chunk of a later observation may take over.
            now: The moment.
            measured: The measured arm, if it is known.

        Returns:
            Why the actions are refused; '' if they are executed.

        Raises:
            ValueError: The actions are empty, not finite or of another shape.
        """
        actions = self._actions(leftover.values)
        if not (len(actions) and np.isfinite(actions).all() and math.isfinite(observed)):
            raise ValueError('leftover actions must be finite, and at least one')
        now = self._advance(now)
        actions = self.limits.clip(unwrapped(actions, measured, self.limits))
        reason = implausible(actions, measured, self.limits, self._nearest)
        reason = reason or self._run(actions, now + self.dt, now, measured)
        if not reason:
            moments = now + (1 + np.arange(len(actions))) * self.dt
            self._follow(leftover, actions, moments, observed, now)
            self._source, self._misses = PREVIOUS, 0
        return reason

    def brake(
        self, now: float, source: str, measured: Measured | None = None, foreign: bool = False
    ) -> None:
        """Bring the arm to rest and drop the rest of the chunk.

        The arm brakes along its reference. If it is more than half of its tolerance behind, or the
        robot is paused, it brakes from its measured position instead.

        Args:
            now: The moment.
            source: The source of the commands from now on, HOLD or STOP.
            measured: The measured arm, if it is known.
            foreign: Whether an arm that is moved by another program brakes too, from its measured
                position and velocity. Joints without a measurement are not commanded.
        """
        now = self._advance(now)
        if self.is_moving(now):
            is_paused = self._speed <= PAUSED_SPEED  # then the arm stands
            held = measured is not None and (is_paused or self._tracking.is_behind(measured))
            self._send(self._braking(now, measured if held else None), now)
        elif foreign and measured is not None and self._moves_now(now, measured):
            self._send(self._braking(now, measured), now)
            self._unknown = ~(np.isfinite(measured.position) | self.limits.by_velocity)
        self._end_plan(source)

    @property
    def is_partial(self) -> bool:
        """Whether a joint is not commanded, because it brakes from an unknown position."""
        return bool(self._unknown.any())

    @staticmethod
    def _moves_now(now: float, measured: Measured) -> bool:
        """Return whether a recent measurement shows that the arm moves."""
        return now - measured.moment <= STALE and bool((np.abs(measured.agreed) > STANDS).any())

    def hold(self, now: float, measured: Measured | None) -> None:
        """Bring an arm that does not follow to rest at its measured position, as STOP."""
        now = self._advance(now)
        if self._reference:
            self._send(self._braking(now, measured), now)
        self._end_plan(STOP)

    def _braking(self, now: float, measured: Measured | None) -> Motion:
        """Return the motion to rest: from the measured positions if `measured` is given.

        Velocity outputs, and joints without a recent measurement, brake along the reference.
        """
        if self._reference:
            position, velocity = self._reference.at(now)
        else:
            position, velocity = np.zeros((2, self.joints))
        if measured is not None and now - measured.moment <= STALE:
            seen = np.isfinite(measured.position) & ~self.limits.by_velocity
            speed = np.clip(measured.agreed, -self.limits.velocity, self.limits.velocity)
            here = measured.position + speed * max(0.0, now - measured.moment)
            position = np.where(seen, here, position)
            velocity = np.where(seen, speed, velocity)
        return brake(position, velocity, self.limits)

    def is_held(self, measured: Measured | None) -> bool:
        """Return whether a standing arm is within a quarter of its tolerance of its reference.

        The result is True if this is unknown.
        """
        if measured is None or not self._reference or (np.abs(measured.agreed) > STANDS).any():
            return True
        return not self._tracking.is_behind(measured, 0.25)

    def catch_up(self, last: float, due: float, now: float) -> None:
        """Delay the motion, because the next set-point is late and the arm holds the last one.

        After PAUSE the arm counts as standing, and the rest of the chunk is dropped.

        Args:
            last: Moment of the last set-point.
            due: Moment at which the next one was due.
            now: The moment.
        """
        late = self._advance(now) - due
        if late > PAUSE:
            self._reference.halt(last)
            self.plan = self.plan.ended()
        else:
            self._reference.delay(late)
            self.plan = self.plan.later(late)

    def brake_apart(self, last: float, held: NDArray[np.bool_], now: float) -> None:
        """Bring the arm to rest after an interruption, each joint from its controller's position.

        Args:
            last: Moment of the last set-point.
            held: Joints that have stood at that set-point, bool [joints]; the others have followed
                the reference.
            now: The moment.
        """
        now = self._advance(now)
        position, velocity = self._reference.at(now)
        position = np.where(held, self._reference.at(last)[0], position)
        # The past reference is dropped, because the held joints did not follow it.
        if self.is_moving(now):
            self._reference.halt(now, position)
            self._send(brake(position, np.where(held, 0.0, velocity), self.limits), now)
        else:  # the arm has stood since the end of the sent motion
            self._reference.halt(self.ends, position)
        self._end_plan(HOLD)

    def monitor(self, now: float, measured: Measured | None, speed: float = 1.0) -> str:
        """Compare the arm with the running motion; called every few periods of a controller.

        The reference pauses while the arm is behind, and runs at the speed of the controller.

        Args:
            now: The moment.
            measured: The measured arm, if it is known.
            speed: Speed scaling of the controller, 0 to 1.

        Returns:
            Why the arm does not follow; '' if it does.
        """
        now = self._advance(now)
        before, self._monitored, self._speed = self._monitored, now, speed
        if not self.is_moving(now):
            self._tracking.restart()
            self.waits = False
            return ''
        scaled = speed < 1.0 and bool(self.plan)  # braking is never delayed
        slower = (1.0 - speed) * min(now - before, PAUSE) if scaled else 0.0
        pause, reason = 0.0, ''
        if measured is not None:
            pause, reason = self._tracking.update(now, measured, speed)
            pause = pause if self.plan else 0.0
        self.waits = pause > slower
        if delay := max(slower, pause):
            self._reference.delay(delay, slower)
            self.cut += slower
            self.plan = self.plan.later(delay)
        return reason

    def lapse(self, now: float) -> None:
        """End the motion where the sent trajectory ends, if the rest was not sent in time."""
        if self._advance(now) >= self.cut:
            self._reference.lapse()
            self.plan, self.cut = self.plan.ended(), math.inf

    def state(self) -> tuple[Any, ...]:
        """Return the motion and the chunk, for `restore`."""
        motion = self._reference.state(), self._unknown
        return motion, self.cut, self.waits, self.plan, self._source, self._misses

    def restore(self, state: tuple[Any, ...]) -> None:
        """Return to the motion and the chunk of a `state`."""
        motion, self.cut, self.waits, self.plan, self._source, self._misses = state
        reference, self._unknown = motion
        self._reference.restore(reference)

    @property
    def lag(self) -> float:
        """Return the measured time (s) by which a following arm is behind its reference."""
        return self._tracking.lag

    @property
    def has_reference(self) -> bool:
        """Whether the arm was commanded since the reference was dropped."""
        return bool(self._reference)

    def drop(self) -> None:
        """Drop the reference, because another program moves the arm."""
        self._reference.clear()
        self._unknown = np.zeros(self.joints, bool)
        self.plan, self._source = self.plan.ended(), HOLD

    def continue_previous(self, now: float) -> str:
        """Return the source at the end of a period in which no fresh chunk was due."""
        self._misses = 0
        if self._source == FRESH:
            self._source = PREVIOUS
        return self.source(now)

    def missed(self, now: float) -> str:
        """Return the source at the end of a period without a fresh chunk.

        It is PREVIOUS while the chunk lasts, up to its H, then HOLD. Once `missed_chunk_limit`
        periods in a row are missed, it is STOP, which drops the rest of the chunk, until another
        chunk takes over.
        """
        now = self._advance(now)
        misses = self._misses + 1
        self.counters.missed += 1
        if misses >= self.missed_chunk_limit and self._source != STOP:
            self.brake(now, STOP)
        source, self._misses = self.continue_previous(now), misses
        self.counters.held += source == HOLD
        self.counters.stopped += source == STOP
        return source

    # ------------------------------------------------------------------ state

    def is_moving(self, now: float) -> bool:
        """Return whether the reference is still moving."""
        return self._advance(now) < self._reference.ends - _TICK

    @property
    def ends(self) -> float:
        """Return the moment at which the reference comes to rest; -inf before any motion."""
        return self._reference.ends

    def source(self, now: float) -> str:
        """Return the present source, one of `command.SOURCES`."""
        return self._source if self.lasts(now) or self._source == STOP else HOLD

    def lasts(self, now: float) -> bool:
        """Return whether an action of a chunk is still to be executed, up to its H."""
        return self.plan.lasts(self._advance(now), self.dt)

    def due(self, now: float) -> Setpoint:
        """Return the command for this moment."""
        now = self._advance(now)
        age, source = now - self.plan.observed, self.source(now)
        if not self._reference:
            return Setpoint(None, None, None, source, age)
        position, velocity = self._reference.at(now)
        position = self._known(position)
        return Setpoint(self._by_kind(position, velocity), position, velocity, source, age)

    def at_rest(self) -> Setpoint:
        """Return the command at the end of the motion."""
        position = self._known(self._reference.rest()[0])
        still = np.zeros(len(position))
        return Setpoint(self._by_kind(position, still), position, still, STOP, math.inf)

    def remaining(self, now: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the remaining actions, float64 [n, joints], and the times (s) [n] until them."""
        return self.plan.remaining(self._advance(now))

    def rows(self, observed: float, count: int, now: float) -> np.ndarray | None:
        """Return the values executed at observed + i * dt (`ActionPlan.rows`). From any thread."""
        return self.plan.rows(observed, self.dt, count, now, self.limits.by_velocity)

    def points(
        self, now: float, measured: Measured | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the motion to come for a trajectory controller: times, positions, velocities.

        The points end at rest within max_open_loop. If that cuts the motion, `cut` is the moment
        at which the points leave it, else inf; see `ReferenceTrajectory.after`. While the
        reference waits for the arm, the only point is the position at which it waits. The
        positions of a joint are NaN if its own is unknown; see `brake`.

        Points that the controller cannot join within the limits are left out; if it can join none,
        all points are delayed; see `Join`.
        """
        times, points, velocities = self._points(self._advance(now), measured)
        return times, self._known(points), velocities

    def _points(
        self, now: float, measured: Measured | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        times, points, velocities, self.cut = self._reference.after(now, LEAD, self.max_open_loop)
        if self.waits:  # the controller waits with the reference
            times, points, self.cut = np.array([LEAD]), self._reference.at(now)[0][None], math.inf
            velocities = np.zeros_like(points)
        if measured is None or not len(times):
            return times, points, velocities
        join = Join.of(measured, now, self.limits, self._tracking.allowed, self._speed)
        if (first := join.first(times, points, velocities)) is not None:
            return times[first:], points[first:], velocities[first:]
        delay = join.delay(times[0], points[0], velocities[0])
        if self.plan and delay is not None:  # braking is never delayed
            if not self.waits:
                lasts = self.max_open_loop - delay
                times, points, velocities, self.cut = self._reference.after(now, LEAD, lasts)
            return times + delay, points, velocities
        return np.maximum(times[-1:], join.shortest(points[-1])), points[-1:], velocities[-1:]

    def unreachable(self, time: float, position: np.ndarray, measured: Measured | None) -> str:
        """Return which joint cannot reach a position [joints] within `time` (s); '' if all can."""
        if measured is None:
            return 'no joint state, or none of late'
        late = max(0.0, self._now - measured.moment) + self._tracking.lag
        reach = self._tracking.allowed + self.limits.velocity * (time + late)
        far = ~self.limits.by_velocity & (np.abs(position - measured.position) > reach)
        if not far.any():
            return ''
        joint = int(far.argmax())
        return (
            f'the first point of joint {self.limits.joints[joint]} must be within '
            f'{reach[joint]:.3g} of the measured position {measured.position[joint]:.3f} '
            f'(got {position[joint]:.3f})'
        )

    def rest(self) -> np.ndarray:
        """Return where the arm comes to rest, float64 [1, joints]; [0, joints] if unknown."""
        rest = self._reference.rest()
        return rest[:0] if self._unknown.any() else rest

    def lost(self, now: float, measured: Measured | None) -> str:
        """Return why the position of the arm is unknown; '' if it is known."""
        return self._tracking.lost(max(self._now, now), measured)

    def moves(self, measured: Measured | None) -> str:
        """Return which joint moves, for any cause; '' if the arm stands."""
        return self._tracking.moves(measured)

    def unrest(self, now: float, measured: Measured | None) -> str:
        """Return why the arm is not known to stand, for a client of a stop; '' if it is known."""
        if measured is None or now - measured.moment > STALE:
            return 'it is not known whether the arm stands, because no joint state is recent'
        for moves, state in (
            (np.abs(measured.agreed) > STANDS, 'moves'),
            (~np.isfinite(measured.position) & ~self.limits.unbounded, 'is not measured'),
        ):
            if moves.any():
                return f'joint {self.limits.joints[int(moves.argmax())]} {state}'
        return ''

    # ------------------------------------------------------------------

    def _run(
        self, actions: np.ndarray, began: float, now: float, measured: Measured | None
    ) -> str:
        """Start the motion through actions, the first due at `began`. Return why not, or ''."""
        if missing := self.lost(now, measured):
            return missing
        assert measured is not None  # `lost` returns a reason for None
        if missing := self._tracking.unconfirmed(measured):
            return missing
        position, velocity = self._tracking.base(now, measured)
        wanted = follow(position, velocity, actions, began - now, self.dt, self.limits)
        motion = self._confine(wanted)
        if motion is None:
            return 'it leaves the workspace'
        self._unknown = np.zeros(self.joints, bool)
        self._send(motion, now)
        return ''

    def _is_followed(self) -> bool:
        positions, _ = self._reference.sample(self.plan.moments)
        # A velocity lasts until the next action.
        _, velocities = self._reference.sample(self.plan.moments + self.dt - _TICK)
        met = self._by_kind(positions, velocities)
        return bool((np.abs(met - self.plan.actions) <= FOLLOWED).all())

    def _known(self, positions: np.ndarray) -> np.ndarray:
        """Return positions [..., joints] of the reference, NaN where they mean nothing."""
        return np.where(self._unknown, math.nan, positions)

    def _by_kind(self, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
        return np.where(self.limits.by_velocity, velocities, positions)

    def _follow(
        self,
        source: LeftoverActions,
        actions: np.ndarray,
        moments: np.ndarray,
        observed: float,
        now: float,
    ) -> None:
        here = self._by_kind(*self._reference.at(now))
        self.plan = self.plan.then(source, actions, moments, observed, now, here)

    def _actions(self, values: ArrayLike) -> np.ndarray:
        actions = np.asarray(values, np.float64)
        if actions.ndim != 2 or actions.shape[1] != self.joints:
            raise ValueError(
                f'a chunk must be [chunk size, {self.joints}] (got {list(actions.shape)})'
            )
        return actions

    def _refuse(self, first: int, reason: str) -> TakeOver:
        self.counters.refused += 1
        return TakeOver(first, reason=reason)

    def _send(self, motion: Motion, now: float) -> None:
        """Replace the reference by a motion of which nothing was sent yet."""
        self._reference.set(motion, now)
        self.cut = math.inf

    def _end_plan(self, source: str) -> None:
        self.plan, self._source, self.waits = self.plan.ended(), source, False

    def _advance(self, now: float) -> float:
        """Return the latest moment so far: two threads may read the clock in any order."""
        self._now = max(self._now, now)
        return self._now
