"""The reference trajectory of an arm, and its comparison with the measured arm.

`ReferenceTrajectory` is the commanded motion over time. `TrackingMonitor` compares the measured
arm with it, although measurements are a little old.

The reference waits for the arm: if a joint is more than half of its tolerance behind, the
reference pauses until the arm has caught up. So the speed slider of a robot may slow the arm, and
no error accumulates while the arm is blocked. Beyond the tolerance, or if the reference has paused
for STALL, the arm does not follow, and the caller holds the measured position.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion, bounded, stay

STANDS = 0.05  # rad/s or m/s: a joint that is not faster stands
SETTLED = 0.5  # s after a motion in which the measured velocity may still be that of the motion
HISTORY = 0.6  # s of the past reference that is kept
FOLLOWS = 0.1  # s at the velocity limit: the default tolerance
LEAST = {False: 0.1, True: 0.01}  # rad and m: no derived tolerance is smaller
REACH = 1.0  # s at the velocity limit: default distance of the first action of a chunk
NEAREST = {False: 0.5, True: 0.1}  # rad and m: smallest derived bound of the first action
CONFIRMED = 0.05  # least time (s) between two measurements of which the second confirms the first
STALL = 0.5  # s without progress after which an arm does not follow
SUPERVISED = 0.5  # speed scaling from which progress is required
PROGRESS = 0.05  # share of the time that counts as progress
LEAK = 1.0  # time constant (s) with which a difference of integrated velocities decays
LONGEST_LAG = 0.2  # s: largest lag that an arm is granted
STEADY = 0.1  # share by which velocities may differ while the lag is measured
NEAR = 0.01  # s at the velocity limit: a joint that stays within this distance stands still
FAST = 0.1  # share of the velocity limit above which the lag is measured
LAGS = 25, 200  # lags that are measured before their median is used, and lags that are kept
_GRID = 0.005  # s between two delays that are tried


def tolerances(limits: Limits, given: ArrayLike, linear: ArrayLike = False) -> NDArray[np.float64]:
    """Return how far each joint may be from its reference, float64 [joints], rad or m.

    Args:
        limits: The limits of the robot.
        given: One number, or [joints]: the tolerance; inf for none; NaN to derive it from the
            velocity limit, as the distance of FOLLOWS seconds, but at least LEAST.
        linear: bool [joints], whether a joint is measured in m.

    Raises:
        ValueError: A tolerance is not above 0.
    """
    allowed = np.asarray(given, np.float64)
    if allowed.shape not in ((), (len(limits),)) or (allowed <= 0).any():
        raise ValueError(
            f'max_tracking_error must be one number above 0, or one for each of the {len(limits)} '
            f'joints (got {given})'
        )
    return np.where(np.isnan(allowed), _derived(limits, FOLLOWS, LEAST, linear), allowed)


def first_action_bounds(
    limits: Limits, given: ArrayLike, linear: ArrayLike, allowed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how far (rad or m) the first action of a chunk may be from the measured position.

    Args:
        limits: The limits of the robot.
        given: One number, or [joints]: the distance; NaN to derive it as the distance of REACH
            seconds at the velocity limit, but at least NEAREST.
        linear: bool [joints], whether a joint is measured in m.
        allowed: Tolerances [joints] of `tolerances`. A joint without one has no derived bound.

    Raises:
        ValueError: A distance is not above 0.
    """
    nearest = np.broadcast_to(np.asarray(given, np.float64), len(limits))
    if (nearest <= 0).any():
        raise ValueError(f'max_relative_target must be > 0 (got {given})')
    derived = np.where(np.isinf(allowed), math.inf, _derived(limits, REACH, NEAREST, linear))
    return np.where(np.isnan(nearest), derived, nearest)


def _derived(
    limits: Limits, seconds: float, least: dict[bool, float], linear: ArrayLike
) -> NDArray[np.float64]:
    """Return the distances [joints] at the velocity limits, but at least `least`."""
    smallest = np.where(np.broadcast_to(linear, len(limits)), least[True], least[False])
    return np.maximum(smallest, seconds * limits.velocity)


class ReferenceTrajectory:
    """The reference trajectory: the running motion, and the motions of the last HISTORY."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forget all motions, as if the arm had never been commanded."""
        self._motions: list[tuple[float, Motion]] = []  # start and motion, in order; the last runs
        self._part: tuple[float, Motion | None] = 0.0, None  # the last one, as it was sent

    def set(self, motion: Motion, now: float) -> None:
        """Replace the running motion from now on."""
        runs = self._motions if now < self.ends else []
        while len(runs) > 1 and runs[1][0] <= now - HISTORY:
            runs = runs[1:]
        self._motions = [*runs, (now, motion)]

    def delay(self, seconds: float, sent: float = 0.0) -> None:
        """Delay all motions.

        Args:
            seconds: The delay (s).
            sent: Part of it (s) by which the controllers are also delayed.
        """
        self._motions = [(since + seconds, motion) for since, motion in self._motions]
        since, part = self._part
        self._part = since + sent, part

    def halt(self, moment: float, position: np.ndarray | None = None) -> None:
        """Let the reference stand from a moment on, at `position` or its position at that time."""
        position = self.at(moment)[0] if position is None else position
        self._motions = [(moment, stay(position))]

    def __bool__(self) -> bool:
        return bool(self._motions)

    @property
    def ends(self) -> float:
        """Return the moment at which the reference comes to rest; -inf before any motion."""
        if not self._motions:
            return -math.inf
        since, motion = self._motions[-1]
        return since + motion.duration

    @property
    def begins(self) -> float:
        """Return the first known moment; inf before any motion."""
        return self._motions[0][0] if self._motions else math.inf

    def at(self, moment: float) -> tuple[np.ndarray, np.ndarray]:
        """Return position and velocity [joints] of the reference at a moment."""
        since, motion = next(
            (run for run in reversed(self._motions) if run[0] <= moment), self._motions[0]
        )
        return motion.at(moment - since)

    def places(self, moments: np.ndarray) -> np.ndarray:
        """Return positions [n, joints] of the reference at moments [n]."""
        begins = np.array([since for since, _ in self._motions])
        runs = np.maximum(np.searchsorted(begins, moments, side='right') - 1, 0)
        places = np.empty((len(moments), len(self._limits)))
        for run in np.unique(runs):
            since, motion = self._motions[run]
            places[runs == run] = motion.sample(moments[runs == run] - since)[0]
        return places

    def sample(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities [n, joints] of the running motion at moments [n]."""
        since, motion = self._motions[-1]
        return motion.sample(moments - since)

    def after(
        self, now: float, lead: float, lasts: float = math.inf
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return the points of the motion to come, and the moment at which they leave it.

        Args:
            now: The moment from which the times count.
            lead: Time (s) before the first point; see `Motion.after`.
            lasts: Longest time (s) until the points end at rest; braking may need longer.

        Returns:
            Times [n], positions and velocities [n, joints], which are empty before any motion, and
            the moment at which these points leave the motion to brake; inf if they do not.
        """
        if not self._motions:
            return np.empty(0), self.rest(), self.rest(), math.inf
        since, motion = self._motions[-1]
        first = now - since + max(lead, lasts / 4 if lasts < math.inf else 0.0)
        part, until = bounded(motion, first, now - since + lasts, self._limits)
        self._part = since, part
        return *part.after(now - since, lead), since + until

    def state(self) -> tuple[list[tuple[float, Motion]], tuple[float, Motion | None]]:
        """Return all motions, for `restore`."""
        return self._motions.copy(), self._part

    def restore(
        self, state: tuple[list[tuple[float, Motion]], tuple[float, Motion | None]]
    ) -> None:
        """Return to the motions of a `state`."""
        self._motions, self._part = state

    def lapse(self) -> None:
        """Replace the reference by what `after` returned last, because no more was sent."""
        since, part = self._part
        assert part is not None
        self._motions[-1] = since, part

    def rest(self) -> np.ndarray:
        """Return the position at which the arm comes to rest, [1, joints]; [0, joints] if none."""
        if not self._motions:
            return np.empty((0, len(self._limits)))
        return self._motions[-1][1].positions[-1:]


class TrackingMonitor:
    """Monitor that compares the measured arm with its reference of `lag` seconds ago.

    The lag (s) of the arm is measured while joints move steadily and as fast as their reference,
    so that a blocked or slowed arm does not change it. It is at most LONGEST_LAG, and 0 until
    enough lags were measured.

    Args:
        reference: The reference trajectory.
        limits: The limits of the robot.
        allowed: Tolerances [joints] of `tolerances`.
        max_joint_state_age: Longest time (s) for which a measured position is used.

    Raises:
        ValueError: max_joint_state_age is not a finite number above 0.
    """

    def __init__(
        self,
        reference: ReferenceTrajectory,
        limits: Limits,
        allowed: NDArray[np.float64],
        max_joint_state_age: float,
    ) -> None:
        if not 0 < max_joint_state_age < math.inf:
            raise ValueError(
                'max_joint_state_age must be a finite number of s above 0 (got '
                f'{max_joint_state_age})'
            )
        self._reference, self._limits = reference, limits
        self._max_joint_state_age = max_joint_state_age
        self.allowed = allowed
        self._positions = np.where(limits.by_velocity, math.inf, allowed)
        self.lag, self._lags = 0.0, deque[float](maxlen=LAGS[1])
        self._elsewhere: Measured | None = None  # first measurement far from the reference
        self.restart()

    def restart(self) -> None:
        """Forget the measurements of the previous motion."""
        self._pauses: deque[tuple[float, float, float]] = deque()  # moment, s observed, s paused
        self._updated = -math.inf
        self._seen: Measured | None = None
        self._drift = np.zeros(len(self._limits))  # of integrated velocities

    # ------------------------------------------------------------------ start of a motion

    def base(self, now: float, measured: Measured) -> tuple[np.ndarray, np.ndarray]:
        """Return position and velocity [joints] at which a new motion starts.

        They are those of the running motion. If the arm was measured after its end, or is beyond
        its tolerance, they are the measured position and zero. A position that no driver measures
        starts at 0, or at that of the reference.
        """
        reference = self._reference
        seen = np.where(np.isfinite(measured.position), measured.position, 0.0)
        if min(now, measured.moment) >= reference.ends or self.strayed(measured):
            return seen, np.zeros(len(seen))
        position, velocity = reference.at(now)
        integrated = self._limits.by_velocity & np.isfinite(measured.position)
        return np.where(integrated, seen, position), velocity

    def lost(self, now: float, measured: Measured | None) -> str:
        """Return why no motion may begin or continue from this measurement; '' if one may."""
        if measured is None:
            return 'no joint state, or none of late'
        age = now - measured.moment
        if abs(age) > self._max_joint_state_age:
            return f'no joint state for {age:.2f} s, {self._max_joint_state_age:g} s are allowed'
        if np.shape(measured.position) != (len(self._limits),):
            return f'a joint state has {np.size(measured.position)} of {len(self._limits)} joints'
        unknown = ~np.isfinite(measured.position) & ~self._limits.unbounded
        if unknown.any():
            return f'joint {self._limits.joints[int(unknown.argmax())]} is not measured'
        ends = self._reference.ends
        if now < ends:
            return ''
        if now < ends + SETTLED:  # the measured velocity may be that of this motion
            return self.strayed(measured) if measured.moment >= ends else ''
        return self.moves(measured)

    def moves(self, measured: Measured | None) -> str:
        """Return which joint moves, or may move; '' if the arm stands."""
        if measured is None:
            return ''  # `lost` has the reason
        known = np.isfinite(measured.position)
        moves = known & ~(np.abs(measured.velocity) <= STANDS)
        if not moves.any():
            return ''
        joint = int(moves.argmax())
        name, speed = self._limits.joints[joint], measured.velocity[joint]
        if np.isnan(speed):
            return f'it is not known yet whether joint {name} stands'
        return f'joint {name} still moves, at {speed:.2f} per second: let it come to rest'

    def unconfirmed(self, measured: Measured) -> str:
        """Return which joint is far from its reference until a second measurement confirms it.

        Another program may have moved the arm, or the measurement may be wrong. Therefore a second
        measurement, at least CONFIRMED later, must agree with the first. Then, and if no joint is
        far, the result is ''.
        """
        first = self._elsewhere
        if not (far := self.strayed(measured)):
            self._elsewhere = None
            return ''
        passed = math.inf if first is None else measured.moment - first.moment
        agrees = (
            first is not None
            and not (np.abs(measured.position - first.position) > self._positions).any()
        )
        if not agrees or passed < 0:
            self._elsewhere = measured
        elif passed >= CONFIRMED:
            return ''
        return f'{far}; a second measurement must confirm it'

    def strayed(self, measured: Measured) -> str:
        """Return which joint is beyond its tolerance from its reference; '' if none is."""
        if not self._reference:
            return ''
        error = np.abs(measured.position - self._sent(measured))
        far = error > self._positions
        if not far.any():
            return ''
        joint = int(far.argmax())
        return (
            f'joint {self._limits.joints[joint]} is at {measured.position[joint]:.3f}, '
            f'{error[joint]:.3f} from where it was sent; tracking_error is '
            f'{self.allowed[joint]:.3g}'
        )

    def _sent(self, measured: Measured) -> np.ndarray:
        """Return the reference [joints] for a measurement, with the lag of the arm."""
        return self._reference.at(measured.moment - self.lag)[0]

    # ------------------------------------------------------------------ while a motion runs

    def update(self, now: float, measured: Measured, speed: float = 1.0) -> tuple[float, str]:
        """Compare the arm with the running motion.

        Args:
            now: The moment.
            measured: The measured arm.
            speed: Speed scaling of the controller, 0 to 1. Below SUPERVISED no progress is
                required. Below 1 a velocity joint is not compared, because its drive may be
                scaled, too.

        Returns:
            The time (s) by which to delay the reference now, and why the arm does not follow;
            '' if it does.
        """
        self._measure_lag(measured)
        if speed < 1.0:
            self._seen, self._drift = None, np.zeros(len(self._limits))
        if reason := self.strayed(measured) or (self._drifted(measured) if speed >= 1.0 else ''):
            return 0.0, reason
        passed = min(max(now - self._updated, 0.0), HISTORY) if self._updated > -math.inf else 0.0
        self._updated = now
        behind = self._behind(measured)
        pause = min(behind, passed)
        if speed < SUPERVISED:
            self._pauses.clear()
            return pause, ''
        self._pauses.append((now, passed, pause))
        while self._pauses[0][0] < now - STALL:
            self._pauses.popleft()
        return pause, self._stalled(measured) if behind else ''

    def is_behind(self, measured: Measured, share: float = 0.5) -> bool:
        """Return whether a joint is more than a share of its tolerance from its reference."""
        error = np.abs(measured.position - self._sent(measured))
        return bool((error > self._positions * share).any())

    def _measure_lag(self, measured: Measured) -> None:
        """Measure the lag of the joints that move steadily and as fast as their reference."""
        sent, speed = self._reference.at(measured.moment)
        _, before = self._reference.at(measured.moment - LONGEST_LAG)
        steady = STEADY * np.abs(speed)
        clear = np.isfinite(self._positions) & (np.abs(speed) > FAST * self._limits.velocity)
        clear &= (np.abs(before - speed) <= steady) & (np.abs(measured.agreed - speed) <= steady)
        if not clear.any():
            return
        late = (sent - measured.position)[clear] / speed[clear]
        self._lags.extend(np.clip(late, 0.0, LONGEST_LAG).tolist())
        if len(self._lags) >= LAGS[0]:
            self.lag = float(np.median(self._lags))

    def _behind(self, measured: Measured) -> float:
        """Return the delay (s) with which the arm is within half of its tolerance; 0 if none."""
        if not self.is_behind(measured):
            return 0.0
        longest = min(measured.moment - self._reference.begins + _GRID, HISTORY)
        delays = np.arange(_GRID, longest, _GRID)
        sent = self._reference.places(measured.moment - self.lag - delays)
        within = ~(np.abs(measured.position - sent) > self._positions / 2).any(axis=1)
        # If no delay helps, the arm is next to its path, within its tolerance.
        return float(delays[within.argmax()]) if within.any() else 0.0

    def _stalled(self, measured: Measured) -> str:
        """Return which joint does not follow, if the reference has hardly moved for STALL."""
        observed = sum(passed for _, passed, _ in self._pauses)
        paused = sum(pause for *_, pause in self._pauses)
        if observed < 0.9 * STALL or paused < (1 - PROGRESS) * observed:
            return ''
        sent = self._sent(measured)
        share = np.abs(measured.position - sent) / self._positions
        joint = int(np.nan_to_num(share).argmax())
        return (
            f'joint {self._limits.joints[joint]} does not follow: it is at '
            f'{measured.position[joint]:.3f} and was sent to {sent[joint]:.3f} for {STALL:g} s'
        )

    def _drifted(self, measured: Measured) -> str:
        """Return which velocity joint does not move as commanded; '' if all do."""
        before, self._seen = self._seen, measured
        if before is None or not self._limits.by_velocity.any():
            return ''
        passed = measured.moment - before.moment
        if passed <= 0:
            return ''
        commanded = self._reference.at(before.moment)[1] + self._reference.at(measured.moment)[1]
        missed = commanded / 2 * passed - (measured.position - before.position)
        self._drift = self._drift * math.exp(-passed / LEAK) + np.nan_to_num(missed)
        far = self._limits.by_velocity & (np.abs(self._drift) > self.allowed)
        if not far.any():
            return ''
        joint = int(far.argmax())
        return (
            f'joint {self._limits.joints[joint]} is at {measured.position[joint]:.3f} and does '
            f'not move as commanded: it is off by {self._drift[joint]:.3f} within {LEAK:g} s; '
            f'tracking_error is {self.allowed[joint]:.3g}'
        )


class StandstillTimer:
    """Measures for how long an arm has stood still, by its measured positions.

    Args:
        velocity: Velocity limits [joints] (rad/s or m/s).
    """

    def __init__(self, velocity: NDArray[np.float64]) -> None:
        self._near = NEAR * velocity
        self._place: NDArray[np.float64] | None = None  # position after the last movement
        self._since = 0.0

    def seconds(self, positions: NDArray[np.float64] | None, now: float) -> float:
        """Return for how long (s) every known joint has stayed near its position.

        Args:
            positions: Measured positions [joints] (rad or m), NaN where unknown. None if no
                position is known, which counts as a motion.
            now: The moment of the call (s), on a clock that does not go back.
        """
        if positions is None or np.isnan(positions).all():
            self._place, self._since = None, now
        elif self._has_moved(positions):
            self._place, self._since = positions.copy(), now
        return now - self._since

    def _has_moved(self, positions: NDArray[np.float64]) -> bool:
        if self._place is None or (np.isnan(positions) != np.isnan(self._place)).any():
            return True
        return bool((np.abs(positions - self._place) > self._near).any())  # NaN is no motion
