"""Publish commands and set-points of the executor's motion at the right moments.

The executor decides the motion. No message lasts longer than the executor's `max_open_loop`; the
rest of a longer motion is sent as time passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.command import (
    FRESH,
    PREVIOUS,
    STOP,
    Command,
    LeftoverActions,
    Measured,
    Setpoint,
    TakeOver,
)
from embodied_kv.control.tracking import STANDS
from embodied_kv.control.trajectory_executor import PAUSE, STALE, TrajectoryExecutor
from embodied_kv.types import ActionChunk

UNKNOWN = np.empty(0, np.float32)  # confidence of actions whose denoising steps are unknown
BRAKINGS, BRAKING_PERIOD = 3, 0.02  # messages of a braking motion, and s between them
RESEND_PERIOD = 0.06  # s between two messages of a motion that waits for the arm
REST_SETPOINTS = 3  # set-points at rest, after the last one in motion
# Fields of a command: copied from a chunk; kept of the newest command of a chunk in every later
# command; and kept while that chunk runs.
CHUNK_FACTS = ('sequence', 'steps', 'prefill_ms', 'denoise_ms')
NEWEST_FACTS = (*CHUNK_FACTS, 'delay', 'latency')
RUNNING_FACTS = ('values', 'stamp', 'execution_horizon', 'confidence')

Fields = dict[str, Any]  # of a Command, by name


class CommandPublisher:
    """Publisher of commands and set-points for one arm.

    Args:
        executor: The motion.
        measured: Returns the measured arm, or None while it is unknown.
        publish: Takes each Command.
        publish_setpoint: Takes set-points; None for a robot without such controllers.
        setpoint_rate: Set-points per second.
        setpoint_joints: Joints whose controllers follow set-points, bool [joints]; the others
            have trajectory controllers.
        sent: Called after each set-point that was published.
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        measured: Callable[[], Measured | None],
        publish: Callable[[Command], None],
        publish_setpoint: Callable[[Setpoint], None] | None,
        setpoint_rate: float,
        setpoint_joints: NDArray[np.bool_],
        sent: Callable[[], None],
    ) -> None:
        self._executor, self._measured = executor, measured
        self._publish, self._publish_setpoint = publish, publish_setpoint
        self._between_setpoints = 1.0 / setpoint_rate
        self._setpoint_joints, self._sent = setpoint_joints, sent
        self._has_trajectories = not setpoint_joints.all()
        self._command: Command | None = None  # the command of the newest chunk
        self.source = ''  # the source of the newest command
        self.is_sent = True  # whether a part of the executor's motion was sent
        self.cancel()

    # ------------------------------------------------------------------ what is sent

    def publish_fresh(self, chunk: ActionChunk, taken: TakeOver, now: float) -> None:
        """Publish a chunk that has taken over."""
        whole = len(chunk.values)
        self._begin(
            self._make(
                FRESH,
                now,
                values=taken.values,
                stamp=chunk.stamp,
                first=taken.first,
                execution_horizon=chunk.execution_horizon or whole,
                confidence=UNKNOWN if chunk.confidence is None else chunk.confidence,
                deadline_met=now <= chunk.deadline,
                delay=taken.first,
                latency=self._executor.due(now).age,
                **{name: getattr(chunk, name) for name in CHUNK_FACTS},
            ),
            now,
        )

    def publish_resumed(
        self, leftover: LeftoverActions, actions: np.ndarray, stamp: int, now: float
    ) -> None:
        """Publish leftover actions of an earlier chunk whose execution has begun."""
        fields: Fields = dict(values=actions, execution_horizon=len(actions), stamp=stamp)
        fields |= dict(sequence=leftover.sequence, steps=leftover.steps)
        self._begin(self._make(PREVIOUS, now, **fields), now)

    def report(self, source: str, now: float, in_time: bool = False) -> None:
        """Publish the status without a motion: the controllers continue or are at rest.

        Args:
            source: The source of the command.
            now: The moment.
            in_time: Whether no fresh chunk was due yet.
        """
        self._emit(replace(self._status(source, now), deadline_met=in_time))

    def publish_braking(self, now: float) -> None:
        """Publish the braking motion BRAKINGS times from now on, and follow it with set-points."""
        self._brakings, self._next_braking, self._next_part = BRAKINGS, now, math.inf
        self.is_sent = False
        self._follow_setpoints(now)

    def publish_standstill(self, now: float) -> None:
        """Publish zero to velocity controllers if the arm is at rest."""
        follows = self._publish_setpoint is not None and self._executor.limits.by_velocity.any()
        if follows and not self._executor.is_moving(now):
            self._follow_setpoints(now, still=True)

    def resend(self, now: float, at_once: bool = False) -> None:
        """Send the motion again, at most every RESEND_PERIOD unless `at_once`.

        Controllers must wait for the arm while the reference trajectory waits.
        """
        if at_once or now >= self._sent_at + RESEND_PERIOD:
            self._next_part = now

    def hand_over(self, now: float) -> None:
        """Publish the measured position once, for controllers that keep their last set-point.

        Nothing is published if the measurement is from before the end of the motion or too old, or
        if the arm moves: the operator moves it already.
        The controllers then keep the position at rest that they received before.
        """
        self.cancel()
        measured = self._measured()
        if self._publish_setpoint is None or measured is None:
            return
        is_old = measured.moment < max(self._executor.ends, now - STALE)
        if is_old or (np.abs(measured.agreed) > STANDS).any():
            return
        by_velocity, position = self._executor.limits.by_velocity, measured.position
        values = np.where(by_velocity, 0.0, position)
        still = np.zeros(len(values))
        self._publish_setpoint(Setpoint(values, position, still, STOP, math.inf))

    def end_at_once(self, now: float) -> None:
        """Publish braking once and cancel the rest, because the clock was set back."""
        self._emit(self._with_motion(self._status(STOP, now), now))
        if self._publish_setpoint is not None and self._executor.has_reference:
            self._publish_setpoint(self._executor.at_rest())
        self.cancel()

    def note_sent(self) -> None:
        """Note that a motion was published to the controllers of trajectories."""
        self.is_sent = self.is_sent or self._has_trajectories

    def cancel(self) -> None:
        """Cancel everything that is still to be sent."""
        self.is_sent = True
        self._brakings, self._next_braking, self._next_part = 0, math.inf, math.inf
        self._last_setpoints, self._next_setpoint = 0, math.inf
        self._handed = -math.inf  # the moment of the newest set-point of this motion
        self._sent_at, self._is_still = -math.inf, False

    def state(self) -> tuple[Fields, tuple[Any, ...]]:
        """Return what is to be sent, and the executor's motion, for `restore`."""
        return vars(self).copy(), self._executor.state()

    def restore(self, state: tuple[Fields, tuple[Any, ...]]) -> None:
        """Return to a `state`."""
        vars(self).update(state[0])
        self._executor.restore(state[1])

    # ------------------------------------------------------------------ when

    @property
    def due(self) -> float:
        """Return the moment at which `send` has something to do; inf for never."""
        return min(self._next_braking, self._next_part, self._next_setpoint)

    def catch_up(self, now: float) -> None:
        """Update the motion if the process could not send in time.

        Trajectory controllers have completed what was sent. Set-point controllers have held the
        last set-point, so that the remaining motion is delayed. If the robot has both types, each
        joint brakes from the position of its controller.
        """
        if self._has_trajectories:
            self._executor.lapse(now)
        held = self._handed
        if held == -math.inf and self._has_trajectories:
            held = self._next_setpoint  # the trajectory was sent, but no set-point yet
        due = held + 2 * self._between_setpoints
        if held > -math.inf and now > due and self._executor.ends > due:
            if not self._has_trajectories:
                self._executor.catch_up(held, due, now)
            elif now - due > PAUSE and self._setpoint_joints.any():
                self._executor.brake_apart(held, self._setpoint_joints, now)
                self.publish_braking(now)

    def send(self, now: float) -> None:
        """Send everything that is due now."""
        if now >= self._next_braking:
            self._brakings -= 1
            self._next_braking = now + BRAKING_PERIOD if self._brakings else math.inf
            self._emit(self._with_motion(self._status(self._executor.source(now), now), now))
        if not self._executor.is_moving(now):
            self._next_part = math.inf
        if now >= self._next_part:
            source = self._executor.source(now)
            status = self._status(PREVIOUS if source == FRESH else source, now)
            self._emit(self._with_motion(replace(status, deadline_met=True), now))
        if now >= self._next_setpoint:
            self._send_setpoint(now)

    def _send_setpoint(self, now: float) -> None:
        """Send a set-point: periodically in motion, and REST_SETPOINTS times at rest."""
        if not self._executor.is_moving(now):
            self._last_setpoints -= 1
        self._next_setpoint = max(self._next_setpoint + self._between_setpoints, now)
        self._handed = now
        if self._last_setpoints <= 0:
            self._handed, self._next_setpoint = -math.inf, math.inf
        setpoint = self._executor.due(now)
        still = self._is_still or setpoint.values is None
        assert self._publish_setpoint is not None  # `_follow_setpoints` checks it
        self._publish_setpoint(self._still() if still else setpoint)
        self.is_sent = self.is_sent or not self._has_trajectories
        self._sent()

    def _still(self) -> Setpoint:
        """Return zero velocities and no positions (NaN), for an arm without a reference."""
        by_velocity = self._executor.limits.by_velocity
        values = np.where(by_velocity, 0.0, math.nan)
        return Setpoint(values, None, np.zeros(len(values)), STOP, math.inf)

    def _follow_setpoints(self, now: float, still: bool = False) -> None:
        self._is_still = still
        if self._publish_setpoint is not None:
            self._last_setpoints, self._next_setpoint = REST_SETPOINTS, now

    # ------------------------------------------------------------------

    def _begin(self, command: Command, now: float) -> None:
        self._brakings, self._next_braking = 0, math.inf
        self.is_sent = False
        self._follow_setpoints(now)
        self._command = command
        self._emit(self._with_motion(command, now))

    def _emit(self, command: Command) -> None:
        self.source = command.source
        self._publish(command)

    def _status(self, source: str, now: float) -> Command:
        last = self._command
        kept: Fields = {name: getattr(last, name) for name in NEWEST_FACTS} if last else {}
        if last and source == PREVIOUS:
            left, _ = self._executor.remaining(now)
            kept |= {name: getattr(last, name) for name in RUNNING_FACTS}
            kept |= dict(first=last.execution_horizon - max(1, len(left)))
        else:
            rest = self._executor.rest()
            kept |= dict(values=rest, execution_horizon=len(rest))
        return self._make(source, now, **kept)

    def _make(self, source: str, now: float, **fields: Any) -> Command:
        """Return a command without a motion, with default fields."""
        nothing = np.empty((0, self._executor.joints))
        usual: Fields = dict(stamp=None, first=0, confidence=UNKNOWN, deadline_met=False)
        usual |= dict(sequence=0, steps=0, prefill_ms=0.0, denoise_ms=0.0)
        usual |= dict(delay=0, latency=math.nan)
        usual |= dict(dt=self._executor.dt, age=self._executor.due(now).age, source=source)
        usual |= dict(points=nothing, velocities=nothing, times=nothing[:, 0])
        return Command(**usual | fields)

    def _with_motion(self, command: Command, now: float) -> Command:
        """Return the command with the motion to come.

        If the motion is cut, more of it is sent halfway to the cut.
        """
        times, points, velocities = self._executor.points(now, self._measured())
        self._next_part = now + (self._executor.cut - now) / 2
        self._sent_at = now
        return replace(command, times=times, points=points, velocities=velocities)
