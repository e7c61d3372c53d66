"""What the robot executes, moment by moment: chunks that take over from one another by time.

The module knows clocks (seconds, `time.monotonic`), actions, limits and the measured arm. It does
not know models, messages or who may move the arm. Action i of a chunk is due at began + i * dt.
The laws:

- The measured position is where the robot is; without one nothing moves.
- A moment that has passed is not executed, nor an action beyond the chunk's execution horizon H.
- Every motion keeps the limits and ends at rest. Without a newer chunk the arm stands.
- A chunk whose first action is far from the arm, or of which much had to be clamped, is refused.
- The reference never runs away from the arm; see `tracking`.

Not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.control.command import (
    FRESH,
    HOLD,
    PREVIOUS,
    SOURCES,
    STOP,
    Counters,
    LeftoverActions,
    Measured,
    Setpoint,
    TakeOver,
)
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion, brake, follow
from embodied_kv.control.plan import Plan
from embodied_kv.control.tracking import STANDS, ReferenceTrajectory, TrackingMonitor, tolerances
from embodied_kv.types import ActionChunk

__all__ = ['FRESH', 'HOLD', 'PREVIOUS', 'SOURCES', 'STOP', 'TrajectoryExecutor']

LEAD = 0.04  # s that a trajectory controller has to join in a motion which it is sent
STALE = 0.2  # s after which an arm is no longer where it was measured
JOINS = 1.05  # times the velocity limit with which a controller may join in a motion
HARSH = 2.0  # times the acceleration limit that a controller may need to join in
WAITS = np.arange(0.004, 0.2, 0.004)  # s by which a trajectory may begin later, to be joined
PAUSE = 0.1  # s without a set-point after which an arm that follows them stands
FOLLOWED = 1e-3  # rad, m, or either per s: an action is followed that is met so closely
REACH = 1.0  # s at the velocity limit: how far the first action of a chunk may be by default
NEAREST = {False: 0.5, True: 0.1}  # rad and m: no derived bound of the first action is smaller
CLAMPED = 0.5  # share of the values of a chunk that may be far outside the limits
OUTSIDE = 0.05  # share of the range of a joint beyond which a position is far outside
TOO_FAST = 2.0  # times the velocity limit above which a velocity is far outside
_TICK = 1e-9  # s; moments closer than this are the same

Confine = Callable[[Motion], 'Motion | None']


class TrajectoryExecutor:
    """The motion of one robot over time.

    Args:
        limits: The limits of the robot.
        dt: Time (s) between two actions.
        max_tracking_error: Tolerance between the measured arm and its reference, rad or m; one
            number or [joints]. inf: none, as for a gripper. NaN: derived; see
            `tracking.tolerances`.
        max_relative_target: Largest distance (rad or m) of the first action of a chunk from the
            measured position; one number or [joints]. NaN: what the joint covers within REACH.
        linear: bool [joints], whether a joint is measured in m.
        max_state_age: Longest time (s) for which a measured position is used.
        max_open_loop: Longest time (s) for which anything that was sent to a controller lasts.
        stop_after: Missed periods in a row after which the rest of the chunk is dropped.
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
        max_state_age: float = 0.5,
        max_open_loop: float = 1.0,
        stop_after: int = 5,
        confine: Confine = lambda motion: motion,
    ) -> None:
        self.limits, self.dt, self.stop_after = limits, dt, stop_after
        self.max_open_loop, self._confine = max_open_loop, confine
        self.counters = Counters()
        self._reference = ReferenceTrajectory(limits)
        allowed = tolerances(limits, max_tracking_error, linear)
        self._tracking = TrackingMonitor(self._reference, limits, allowed, max_state_age)
        self._nearest = _first_targets(limits, max_relative_target, linear, allowed)
        self._now = self._looked = -math.inf
        self.cut = math.inf  # the moment at which the points that were sent leave the motion
        self.waits = False  # whether the reference waits for the arm
        self._speed = 1.0  # of the controller, as `look` was told
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
        actions = self._unwrapped(actions, measured)
        values = self.limits.clip(actions)
        reason = self._implausible(actions[first:end], measured)
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
        """From now on, execute what was left of an earlier chunk: never as fresh.

        It sets out from where the arm was measured, so its first action is due after dt. observed:
        the moment of its observation; a chunk that answers a later one takes over from it. Returns
        why not, or ''. Raises ValueError as `take_over` does.
        """
        actions = self._actions(leftover.values)
        if not (len(actions) and np.isfinite(actions).all() and math.isfinite(observed)):
            raise ValueError('what was left of a chunk is empty or not finite')
        now = self._advance(now)
        actions = self.limits.clip(self._unwrapped(actions, measured))
        reason = self._implausible(actions, measured)
        reason = reason or self._run(actions, now + self.dt, now, measured)
        if not reason:
            moments = now + (1 + np.arange(len(actions))) * self.dt
            self._follow(leftover, actions, moments, observed, now)
            self._source, self._misses = PREVIOUS, 0
        return reason

    def brake(
        self, now: float, source: str, measured: Measured | None = None, foreign: bool = False
    ) -> None:
        """Come to rest, as `source`, HOLD or STOP; the rest of the chunk is dropped.

        The arm brakes along its reference. An arm for which the reference waits, or that is
        beyond its tolerance, holds its measured position instead.

        Args:
            now: The moment.
            source: The source of the commands from now on.
            measured: The measured arm, if it is known.
            foreign: Whether an arm that is moved by another program brakes too, from its measured
                position and velocity.
        """
        now = self._advance(now)
        if self.is_moving(now):
            held = measured is not None and self._tracking.is_behind(measured)
            self._send(self._braking(now, measured if held else None), now)
        elif foreign and measured is not None and (np.abs(measured.surely) > STANDS).any():
            self._send(self._braking(now, measured), now)
        self._end_plan(source)

    def hold(self, now: float, measured: Measured | None) -> None:
        """Come to rest where the arm is measured, as STOP: it does not follow its reference."""
        now = self._advance(now)
        if self._reference:
            self._send(self._braking(now, measured), now)
        self._end_plan(STOP)

    def _braking(self, now: float, measured: Measured | None) -> Motion:
        """Return the motion to rest: of positions from where they are measured, if that is given.

        Velocities, and joints that are not measured, or not of late, brake along the reference.
        """
        if self._reference:
            position, velocity = self._reference.at(now)
        else:
            position, velocity = np.zeros((2, self.joints))
        if measured is not None and now - measured.moment <= STALE:
            seen = np.isfinite(measured.position) & ~self.limits.by_velocity
            speed = np.clip(measured.surely, -self.limits.velocity, self.limits.velocity)
            here = measured.position + speed * max(0.0, now - measured.moment)
            position = np.where(seen, here, position)
            velocity = np.where(seen, speed, velocity)
        return brake(position, velocity, self.limits)

    def is_held(self, measured: Measured | None) -> bool:
        """Whether an arm that stands is where it was sent, within a quarter of its tolerance."""
        if measured is None or not self._reference or (np.abs(measured.surely) > STANDS).any():
            return True
        return not self._tracking.is_behind(measured, 0.25)

    def catch_up(self, last: float, due: float, now: float) -> None:
        """Who is sent set-points stands at the last one until the next: that one is late.

        last, due: the moments of the last one and of the next. What is to come is so much later;
        after PAUSE the arm has come to rest, and the rest of the chunk is dropped.
        """
        late = self._advance(now) - due
        if late > PAUSE:
            self._reference.halt(last)
            self.plan = self.plan.ended()
        else:
            self._reference.delay(late)
            self.plan = self.plan.later(late)

    def look(self, now: float, measured: Measured | None, speed: float = 1.0) -> str:
        """Compare the arm with the motion that runs; called every few periods of a controller.

        The reference pauses where the arm is behind, and runs at the speed of the controller.

        Args:
            now: The moment.
            measured: The measured arm, if it is known.
            speed: Speed scaling of the controller, 0 to 1.

        Returns:
            Why the arm does not follow; '' if it does.
        """
        now = self._advance(now)
        before, self._looked, self._speed = self._looked, now, speed
        if not self.is_moving(now):
            self._tracking.restart()
            self.waits = False
            return ''
        scaled = speed < 1.0 and bool(self.plan)  # braking ends, whatever the arm does
        slower = (1.0 - speed) * min(now - before, PAUSE) if scaled else 0.0
        pause, reason = 0.0, ''
        if measured is not None:
            pause, reason = self._tracking.look(now, measured)
            reason = reason if speed >= 1.0 else self._tracking.strayed(measured)
            pause = pause if self.plan else 0.0
        self.waits = pause > slower
        if delay := max(slower, pause):
            self._reference.delay(delay, slower)
            self.cut += slower
            self.plan = self.plan.later(delay)
        return reason

    def lapse(self, now: float) -> None:
        """End the motion as it was sent, if the rest of it was not sent in time."""
        if self._advance(now) >= self.cut:
            self._reference.lapse()
            self.plan, self.cut = self.plan.ended(), math.inf

    @property
    def lag(self) -> float:
        """The measured time (s) by which the arm is behind its reference while it follows."""
        return self._tracking.lag

    @property
    def has_reference(self) -> bool:
        """Whether the arm was sent anywhere since the reference was dropped."""
        return bool(self._reference)

    def drop(self) -> None:
        """Forget the reference: another program moves the arm."""
        self._reference.clear()
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
        return self._advance(now) < self._reference.ends - _TICK

    @property
    def ends(self) -> float:
        """The moment from which on the arm is to stand; -inf if it never was to move."""
        return self._reference.ends

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
        if not self._reference:
            return Setpoint(None, None, None, source, age)
        position, velocity = self._reference.at(now)
        return Setpoint(self._told(position, velocity), position, velocity, source, age)

    def at_rest(self) -> Setpoint:
        """Return the command at the end of the motion."""
        position = self.rest()[0]
        still = np.zeros(len(position))
        return Setpoint(self._told(position, still), position, still, STOP, math.inf)

    def remaining(self, now: float) -> tuple[np.ndarray, np.ndarray]:
        """The actions still to come, float64 [n, joints], and their moments in s from now, [n]."""
        return self.plan.remaining(self._advance(now))

    def rows(self, observed: float, count: int, now: float) -> np.ndarray | None:
        """What is executed at observed + i * dt: see `Plan.rows`. From any thread."""
        return self.plan.rows(observed, self.dt, count, now, self.limits.by_velocity)

    def points(
        self, now: float, measured: Measured | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the motion to come for a trajectory controller: times, positions, velocities.

        The points end at rest within max_open_loop. If that cuts the motion, `cut` is the moment
        at which the points leave it, else inf; see `ReferenceTrajectory.after`. While the
        reference waits for the arm, the only point is the position at which it waits.

        A controller executes a cubic from the measured arm to the first point. Points that this
        cubic cannot reach within JOINS times the velocity limits and HARSH times the acceleration
        limits are left out; if none can be reached, all points come later. A controller at a speed
        of 10 % executes the cubic with 1 % of its acceleration. A paused controller executes it at
        the speed with which it resumes.
        """
        now = self._advance(now)
        times, points, velocities, self.cut = self._reference.after(now, LEAD, self.max_open_loop)
        if self.waits:  # the controller waits with the reference
            times, points, self.cut = np.array([LEAD]), self._reference.at(now)[0][None], math.inf
            velocities = np.zeros_like(points)
        if measured is None or not len(times):
            return times, points, velocities
        speed = measured.velocity if measured.recent is None else measured.recent
        speed = np.nan_to_num(speed)
        begin = measured.position + speed * max(0.0, now - measured.moment)
        way = points - begin
        fits = self._joins(way, speed, velocities, times)
        if fits.any():
            first = int(fits.argmax())
            return times[first:], points[first:], velocities[first:]
        fits = self._joins(way[:1], speed, velocities[:1], times[0] + WAITS)
        if self.plan and fits.any():  # an arm that brakes is not to rest later
            wait = WAITS[fits.argmax()]
            if not self.waits:
                lasts = self.max_open_loop - wait
                times, points, velocities, self.cut = self._reference.after(now, LEAD, lasts)
            return times + wait, points, velocities
        far = np.where(self._free, 0.0, np.abs(way[-1]))
        needed = np.maximum(
            1.5 * far / self.limits.velocity,
            np.sqrt(6 * far / (HARSH * self.limits.acceleration)),
        )
        return np.maximum(times[-1:], np.nanmax(needed)), points[-1:], velocities[-1:]

    @property
    def _free(self) -> np.ndarray:
        """Return which joints may join in anyhow, [joints]: velocities, and grippers."""
        return self.limits.by_velocity | np.isinf(self._tracking.allowed)

    def _joins(
        self, way: np.ndarray, begins: np.ndarray, ends: np.ndarray, lasts: np.ndarray
    ) -> np.ndarray:
        """Return whether cubics are within the limits that a controller may need, bool [n].

        way: [n, joints]. begins, ends: the velocities at both ends, [joints] and [n, joints].
        lasts: s [n].
        """
        lasts = lasts[:, None]
        mean = way / lasts
        fastest = np.abs(1.5 * mean - (begins + ends) / 4)  # in the middle
        bends = 6 * mean - 4 * begins - 2 * ends, 6 * mean - 2 * begins - 4 * ends
        harshest = np.maximum(*np.abs(bends)) / lasts  # at the ends
        gentle = HARSH * self.limits.acceleration / (self._speed or 1.0) ** 2
        exceeds = (fastest > JOINS * self.limits.velocity) | (harshest > gentle)
        return ~(exceeds & ~self._free).any(axis=1)

    def unreachable(self, time: float, position: np.ndarray, measured: Measured | None) -> str:
        """Return which joint cannot have reached a point; '' if all can.

        time: s until the point. position: [joints].
        """
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
        """Where the arm comes to rest: float64 [1, joints]; [0, joints] if nobody knows."""
        return self._reference.rest()

    def lost(self, now: float, measured: Measured | None) -> str:
        """Return why it is not known where the arm is; '' if it is."""
        return self._tracking.lost(max(self._now, now), measured)

    def moves(self, measured: Measured | None) -> str:
        """Return which joint moves, by whatever hand; '' if the arm stands."""
        return self._tracking.moves(measured)

    # ------------------------------------------------------------------

    def _run(
        self, actions: np.ndarray, began: float, now: float, measured: Measured | None
    ) -> str:
        """The motion through actions of which the first is due at `began`. Returns why not."""
        if missing := self.lost(now, measured):
            return missing
        assert measured is not None  # else it is lost
        if missing := self._tracking.unconfirmed(measured):
            return missing
        position, velocity = self._tracking.base(now, measured)
        wanted = follow(position, velocity, actions, began - now, self.dt, self.limits)
        motion = self._confine(wanted)
        if motion is None:
            return 'it leaves the workspace'
        self._send(motion, now)
        return ''

    def _unwrapped(self, actions: np.ndarray, measured: Measured | None) -> np.ndarray:
        """Bring the targets of continuous joints within pi of the arm, and of one another."""
        continuous = self.limits.continuous & ~self.limits.by_velocity
        if measured is None or not continuous.any():
            return actions
        actions, turn = actions.copy(), 2 * math.pi
        chain = np.unwrap(actions[:, continuous], axis=0)
        turns = np.round((measured.position[continuous] - chain[0]) / turn)
        actions[:, continuous] = chain + turn * np.nan_to_num(turns)
        return actions

    def _implausible(self, actions: np.ndarray, measured: Measured | None) -> str:
        """Return why actions [n, joints] before clamping cannot be meant; '' if they can."""
        limits, by_velocity = self.limits, self.limits.by_velocity
        with np.errstate(invalid='ignore'):
            margin = OUTSIDE * np.where(np.isfinite(limits.upper), limits.upper - limits.lower, 0)
        low = np.where(by_velocity, -TOO_FAST * limits.velocity, limits.lower - margin)
        high = np.where(by_velocity, TOO_FAST * limits.velocity, limits.upper + margin)
        share = float(((actions < low) | (actions > high)).mean())
        if share > CLAMPED:
            return (
                f'{share:.0%} of its values are far outside the limits, {CLAMPED:.0%} are '
                "allowed: check the unit of the contract's actions"
            )
        if measured is None:
            return ''
        first = limits.clip(actions[:1])[0]
        far = ~by_velocity & (np.abs(first - measured.position) > self._nearest)
        if not far.any():
            return ''
        joint = int(far.argmax())
        return (
            f'its first action sends joint {limits.joints[joint]} from '
            f'{measured.position[joint]:.3f} to {first[joint]:.3f}; max_relative_target is '
            f'{self._nearest[joint]:.3g}'
        )

    def _is_followed(self) -> bool:
        positions, _ = self._reference.sample(self.plan.moments)
        _, velocities = self._reference.sample(
            self.plan.moments + self.dt - _TICK
        )  # kept till then
        met = self._told(positions, velocities)
        return bool((np.abs(met - self.plan.actions) <= FOLLOWED).all())

    def _told(self, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
        """Of each output its kind."""
        return np.where(self.limits.by_velocity, velocities, positions)

    def _follow(
        self,
        source: LeftoverActions,
        actions: np.ndarray,
        moments: np.ndarray,
        observed: float,
        now: float,
    ) -> None:
        """The motion that has just begun leads through these."""
        here = self._told(*self._reference.at(now))
        self.plan = self.plan.then(source, actions, moments, observed, now, here)

    def _actions(self, values: ArrayLike) -> np.ndarray:
        actions = np.asarray(values, np.float64)
        if actions.ndim != 2 or actions.shape[1] != self.joints:
            raise ValueError(f'a chunk is [chunk size, {self.joints}]: got {list(actions.shape)}')
        return actions

    def _refuse(self, first: int, reason: str) -> TakeOver:
        self.counters.refused += 1
        return TakeOver(first, reason=reason)

    def _send(self, motion: Motion, now: float) -> None:
        """Take a motion for the reference; nothing of it was sent yet."""
        self._reference.set(motion, now)
        self.cut = math.inf

    def _end_plan(self, source: str) -> None:
        self.plan, self._source, self.waits = self.plan.ended(), source, False

    def _advance(self, now: float) -> float:
        """Time never runs back here, in whatever order two threads read the clock."""
        self._now = max(self._now, now)
        return self._now


def _first_targets(
    limits: Limits, given: ArrayLike, linear: ArrayLike, allowed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far the first action may be, [joints]; joints without a tolerance are exempt."""
    nearest = np.broadcast_to(np.asarray(given, np.float64), len(limits))
    if (nearest <= 0).any():
        raise ValueError(f'max_relative_target must be above 0 (got {given})')
    least = np.where(np.broadcast_to(linear, len(limits)), NEAREST[True], NEAREST[False])
    derived = np.where(np.isinf(allowed), math.inf, np.maximum(least, REACH * limits.velocity))
    return np.where(np.isnan(nearest), derived, nearest)
