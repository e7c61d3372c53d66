"""Values that the modules of control exchange: measured arm, commands, set-points and actions.

`CommandPublisher` creates commands, `nodes.common.conversions` converts them to messages, and a
capsule stores leftover actions. Times are seconds on the clock of the control loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FRESH, PREVIOUS, HOLD, STOP = SOURCES = ('fresh', 'previous', 'hold', 'stop')
_TICK = 1e-9  # s; moments closer than this are the same


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured arm at one moment.

    NaN marks an output that no driver measures, such as an axis of a Cartesian controller, and a
    velocity that is not known yet.

    Args:
        position: Positions [joints] (rad or m).
        moment: Moment of the measurement (s).
        velocity: Mean velocities [joints] over an interval that ends at `moment`.
        recent: Mean velocities [joints] over a shorter interval; None if unknown.
    """

    position: np.ndarray
    moment: float
    velocity: np.ndarray
    recent: np.ndarray | None = None

    @property
    def agreed(self) -> np.ndarray:
        """Return the velocity [joints] on which both intervals agree; 0 where they do not."""
        recent = self.velocity if self.recent is None else self.recent
        least = np.minimum(np.abs(self.velocity), np.abs(recent)) * np.sign(recent)
        return np.nan_to_num(np.where(self.velocity * recent > 0, least, 0.0))


@dataclass(frozen=True, eq=False)
class Command:
    """A chunk as it is executed, and the progress of its execution.

    Args:
        values: float64 [chunk size, joints]. For HOLD and STOP the position at which the arm comes
            to rest, [1, joints]; [0, joints] while that is unknown.
        dt: Time (s) between two actions.
        stamp: ROS time (ns) of the observation; None if the command answers no observation.
        first: Index of the first action whose moment has not passed, at most that of the last
            action to execute.
        execution_horizon: H, the number of actions from the start that may be executed.
        confidence: float32 [chunk size]; [0] if the denoising steps are unknown.
        sequence: Number of the chunk.
        age: Time (s) since the observation.
        delay: d, the number of actions of the newest chunk that had passed when it took over.
        latency: Time (s) from the observation of the newest chunk until it took over; NaN if
            unknown.
        steps: Euler steps that computed the chunk.
        source: One of SOURCES.
        deadline_met: Whether the chunk arrived before its deadline.
        prefill_ms, denoise_ms: Durations (ms) in the engine.
        points, velocities: float64 [n, joints]: the trajectory that replaces the one that a
            trajectory controller executes. The last velocity is zero. Empty where nothing changes:
            the controller continues, or the arm is at rest.
        times: [n] Times (s) of the points, from the receipt of the command.
    """

    values: np.ndarray
    dt: float
    stamp: int | None
    first: int
    execution_horizon: int
    confidence: np.ndarray
    sequence: int
    age: float
    delay: int
    latency: float
    steps: int
    source: str
    deadline_met: bool
    prefill_ms: float
    denoise_ms: float
    points: np.ndarray
    velocities: np.ndarray
    times: np.ndarray


@dataclass(frozen=True, eq=False)
class Setpoint:
    """The command of one moment, for a controller that takes no trajectories.

    Args:
        values: float64 [joints]: the position or the velocity of each output, by its kind; NaN
            for a position that is not commanded.
        positions, velocities: [joints] Both of every output; None before the first motion.
        source: One of SOURCES.
        age: Time (s) since the observation; inf without one.
    """

    values: np.ndarray | None
    positions: np.ndarray | None
    velocities: np.ndarray | None
    source: str
    age: float


@dataclass(frozen=True, eq=False)
class LeftoverActions:
    """The actions of a chunk that are still to be executed, up to its execution horizon.

    Args:
        values: float64 [n, joints]; the first action is due at once.
        stamp: ROS time (ns) of the observation that they answer.
        age: Time (s) since that observation.
        sequence: Number of the chunk.
        steps: Euler steps that computed them.
    """

    values: np.ndarray
    stamp: int
    age: float
    sequence: int
    steps: int


NO_CHUNK = LeftoverActions(np.empty((0, 0)), 0, 0.0, 0, 0)


@dataclass(frozen=True, eq=False)
class ActionPlan:
    """The actions that are executed over time: the rest of the running chunk, and the past.

    A plan is immutable and is replaced as a whole, so that any thread may read it.

    Args:
        actions: float64 [n, joints], up to the execution horizon. The first is the action that was
            due next at the take-over.
        moments: [n] Moments (s) at which the actions are due.
        past: [m, joints] Values executed since the observation that the chunk answers. The last
            row is the value at the take-over, unless an action was due then.
        past_moments: [m] Moments (s) of `past`.
        observed: Moment (s) of the observation.
        source: The chunk, as leftover actions without values.
    """

    actions: NDArray[np.float64]
    moments: NDArray[np.float64]
    past: NDArray[np.float64]
    past_moments: NDArray[np.float64]
    observed: float = -np.inf
    source: LeftoverActions = NO_CHUNK

    @classmethod
    def empty(cls, joints: int) -> ActionPlan:
        """Return a plan without actions and without a past."""
        none = np.empty((0, joints))
        return cls(none, none[:, 0], none, none[:, 0])

    def __bool__(self) -> bool:
        return len(self.moments) > 0

    def then(
        self,
        source: LeftoverActions,
        actions: NDArray[np.float64],
        moments: NDArray[np.float64],
        observed: float,
        now: float,
        here: NDArray[np.float64],
    ) -> ActionPlan:
        """Return the plan in which other actions replace the rest of this one.

        Args:
            source: The chunk of the actions.
            actions: [n, joints].
            moments: [n] Moments (s) at which they are due.
            observed: Moment (s) of their observation.
            now: Moment (s) of the take-over.
            here: [joints] The position or velocity that is commanded now.
        """
        past, past_moments = self._timeline()
        over = past_moments < now - _TICK
        past, past_moments = past[over], past_moments[over]
        if moments[0] > now + _TICK:
            past, past_moments = np.vstack([past, here]), np.append(past_moments, now)
        since = max(0, int(np.searchsorted(past_moments, observed, side='right')) - 1)
        return ActionPlan(actions, moments, past[since:], past_moments[since:], observed, source)

    def ended(self) -> ActionPlan:
        """Return an empty plan that keeps the moment of the observation."""
        return replace(ActionPlan.empty(self.actions.shape[1]), observed=self.observed)

    def later(self, seconds: float) -> ActionPlan:
        """Return the plan with all remaining actions delayed by a time (s)."""
        return replace(self, moments=self.moments + seconds)

    def lasts(self, now: float, dt: float) -> bool:
        """Return whether actions remain, or the last one has lasted for less than dt (s)."""
        return bool(self) and bool(now < self.moments[-1] + dt - _TICK)

    def remaining(self, now: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the remaining actions [n, joints], and the times (s) [n] until they are due."""
        first = int(np.searchsorted(self.moments, now - _TICK))
        return self.actions[first:], np.maximum(self.moments[first:] - now, 0.0)

    def leftover(self, now: float) -> LeftoverActions | None:
        """Return the remaining actions, to be started again later; None if there are none."""
        values, _ = self.remaining(now)
        if not len(values):
            return None
        return replace(self.source, values=values, age=now - self.observed)

    def rows(
        self, observed: float, dt: float, count: int, now: float, by_velocity: NDArray[np.bool_]
    ) -> NDArray[np.float64] | None:
        """Return the values executed at observed + i * dt, float64 [count, joints].

        Positions are interpolated linearly between two actions. A velocity lasts until the next
        action. Before the known past, the arm is at its first known position. All joints are NaN
        after the last action. The result is None if no action remains.
        """
        times = observed + np.arange(count) * dt
        known = times <= (self.moments[-1] + _TICK if self else -np.inf)
        if not known.any() or self.moments[-1] < now - _TICK:
            return None
        actions, moments = self._timeline()
        held = np.searchsorted(moments, times + _TICK, side='right').clip(1) - 1
        between = np.stack([np.interp(times, moments, joint) for joint in actions.T], axis=1)
        rows = np.where(by_velocity, actions[held], between)
        return np.where(known[:, None], rows, np.nan)

    def _timeline(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        moments = np.concatenate([self.past_moments, self.moments])
        return np.concatenate([self.past, self.actions]), moments


@dataclass(frozen=True, eq=False)
class TakeOver:
    """The result of offering a chunk to the executor.

    Args:
        first: Index of the first action whose moment has not passed. It is the chunk size if all
            have passed, or if a chunk of a later observation runs.
        values: float64 [chunk size, joints], the actions within the limits; None if refused.
        blended: Whether the limits prevent the arm from reaching an action that is executed.
        clamped: Number of executed values that were outside the limits.
        reason: Why the chunk was refused; '' if it was not.
    """

    first: int
    values: np.ndarray | None = None
    blended: bool = False
    clamped: int = 0
    reason: str = ''


@dataclass
class Counters:
    """Counters since the start.

    takeovers, refused, blended and late count chunks, clamped counts values, and missed, held and
    stopped count control periods. `late` chunks took over later than their action prefix assumed.
    """

    takeovers: int = 0
    refused: int = 0
    blended: int = 0
    late: int = 0
    clamped: int = 0
    missed: int = 0
    held: int = 0
    stopped: int = 0
