"""What is sent to the robot, and when: commands, braking sent several times, set-points.

The module knows the executor's motion. It does not decide what the arm does. Nothing that was
sent lasts longer than the executor's `max_open_loop`: the rest of a longer motion is sent as time
passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_kv.control.command import (
    FRESH,
    HOLD,
    PREVIOUS,
    STOP,
    Command,
    LeftoverActions,
    Measured,
    Setpoint,
    TakeOver,
)
from embodied_kv.control.trajectory_executor import PAUSE, STALE, TrajectoryExecutor
from embodied_kv.types import ActionChunk

UNKNOWN = np.empty(0, np.float32)  # the confidence in what nobody denoised, or nobody remembers
TIMES, BETWEEN = 3, 0.02  # how often braking is sent, and s between
AGAIN = 0.06  # s between two messages of a motion that waits for the arm
LAST = 3  # set-points at rest, after the last one in motion
# What a command says of the newest chunk: as that does, whatever it tells, and while that runs.
OWN = ('sequence', 'steps', 'prefill_ms', 'denoise_ms')
KEPT = (*OWN, 'delay', 'latency')
OF_CHUNK = ('values', 'stamp', 'execution_horizon', 'confidence')

Fields = dict[str, Any]  # of a Command, by name


class CommandPublisher:
    """Sends commands and set-points.

    Args:
        executor: The motion.
        measured: Returns the measured arm, or None while it is unknown.
        publish: Takes each Command.
        publish_setpoint: Takes set-points; None for a robot without such controllers.
        setpoint_rate: Set-points per second.
        has_trajectories: Whether the robot has controllers of trajectories.
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        measured: Callable[[], Measured | None],
        publish: Callable[[Command], None],
        publish_setpoint: Callable[[Setpoint], None] | None,
        setpoint_rate: float,
        has_trajectories: bool,
    ) -> None:
        self._executor, self._measured = executor, measured
        self._publish, self._publish_setpoint = publish, publish_setpoint
        self._between_setpoints = 1.0 / setpoint_rate
        self._has_trajectories = has_trajectories
        self._command: Command | None = None  # the newest chunk
        self.said = ''  # the source of the newest command
        self.cease()

    # ------------------------------------------------------------------ what is sent

    def fresh(self, chunk: ActionChunk, taken: TakeOver, now: float) -> None:
        """Send a chunk that has taken over."""
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
                **{name: getattr(chunk, name) for name in OWN},
            ),
            now,
        )

    def resumed(
        self, leftover: LeftoverActions, actions: np.ndarray, stamp: int, now: float
    ) -> None:
        """Send what was left of an earlier chunk and has begun."""
        fields: Fields = dict(values=actions, execution_horizon=len(actions), stamp=stamp)
        fields |= dict(sequence=leftover.sequence, steps=leftover.steps)
        self._begin(self._make(PREVIOUS, now, **fields), now)

    def goes_on(self, source: str, now: float, in_time: bool = False) -> None:
        """Report what happens without a fresh chunk; the controllers are sent nothing.

        in_time: none was due yet.
        """
        self._say(replace(self._word(source, now), deadline_met=in_time))

    def brakes(self, now: float) -> None:
        """Send from now on, several times, that the arm comes to rest."""
        self._brakes, self._next_brake, self._next_part = TIMES, now, math.inf
        self._follow_setpoints(now)

    def rests(self, now: float) -> None:
        """Send controllers that keep their last velocity that the arm stands."""
        follows = self._publish_setpoint is not None and self._executor.limits.by_velocity.any()
        if follows and not self._executor.is_moving(now):
            self._follow_setpoints(now, still=True)

    def resend(self, now: float, at_once: bool = False) -> None:
        """Send the motion again soon: controllers must wait for the arm as the reference does."""
        if at_once or now >= self._sent_at + AGAIN:
            self._next_part = now

    def hand_over(self, now: float) -> None:
        """Send controllers that keep their last position the measured one, once.

        Nothing is sent if the arm was measured on its way or too long ago: controllers keep the
        position at rest, which they were sent before.
        """
        self.cease()
        measured = self._measured()
        if self._publish_setpoint is None or measured is None:
            return
        if measured.moment < max(self._executor.ends, now - STALE):
            return
        by_velocity, position = self._executor.limits.by_velocity, measured.position
        values = np.where(by_velocity, 0.0, position)
        still = np.zeros(len(values))
        self._publish_setpoint(Setpoint(values, position, still, STOP, math.inf))

    def ends_now(self, now: float) -> None:
        """Send at once that the arm comes to rest, and nothing more: the clock was set back."""
        self._say(self._sent(self._word(STOP, now), now))
        if self._publish_setpoint is not None and self._executor.has_reference:
            self._publish_setpoint(self._executor.at_rest())
        self.cease()

    def cease(self) -> None:
        """Send nothing more, not even the rest of what was begun."""
        self._brakes, self._next_brake, self._next_part = 0, math.inf, math.inf
        self._last_setpoints, self._next_setpoint = 0, math.inf
        self._handed = -math.inf  # the moment of the newest set-point of this motion
        self._sent_at, self._is_still = -math.inf, False

    # ------------------------------------------------------------------ when

    @property
    def due(self) -> float:
        """The moment at which `send` has something to do."""
        return min(self._next_brake, self._next_part, self._next_setpoint)

    def catch_up(self, now: float) -> None:
        """Take account of what was not sent in time.

        Trajectory controllers have ended what they were sent. Controllers that follow set-points
        have stood at the last one: what is to come is later. Where a robot has both, the arm
        brakes.
        """
        if self._has_trajectories:
            self._executor.lapse(now)
        due = self._handed + 2 * self._between_setpoints
        if self._handed > -math.inf and now > due and self._executor.ends > due:
            if not self._has_trajectories:
                self._executor.catch_up(self._handed, due, now)
            elif now - due > PAUSE:
                self._executor.brake(now, HOLD, self._measured())
                self.brakes(now)

    def send(self, now: float) -> None:
        """Send what is due now."""
        if now >= self._next_brake:
            self._brakes -= 1
            self._next_brake = now + BETWEEN if self._brakes else math.inf
            self._say(self._sent(self._word(self._executor.source(now), now), now))
        if not self._executor.is_moving(now):
            self._next_part = math.inf
        if now >= self._next_part:
            source = self._executor.source(now)
            word = self._word(PREVIOUS if source == FRESH else source, now)
            self._say(self._sent(replace(word, deadline_met=True), now))
        if now >= self._next_setpoint:
            self._send_setpoint(now)

    def _send_setpoint(self, now: float) -> None:
        """Send a set-point: at the controllers' rate in motion, and a few times at rest."""
        if not self._executor.is_moving(now):
            self._last_setpoints -= 1
        self._next_setpoint = max(self._next_setpoint + self._between_setpoints, now)
        self._handed = now
        if self._last_setpoints <= 0:
            self._handed, self._next_setpoint = -math.inf, math.inf
        setpoint = self._executor.due(now)
        still = self._is_still or setpoint.values is None
        assert self._publish_setpoint is not None  # `_follow_setpoints` asks
        self._publish_setpoint(self._still() if still else setpoint)

    def _still(self) -> Setpoint:
        """Zero for velocities, nothing (NaN) for positions: the arm was never sent anywhere."""
        by_velocity = self._executor.limits.by_velocity
        values = np.where(by_velocity, 0.0, math.nan)
        return Setpoint(values, None, np.zeros(len(values)), STOP, math.inf)

    def _follow_setpoints(self, now: float, still: bool = False) -> None:
        self._is_still = still
        if self._publish_setpoint is not None:
            self._last_setpoints, self._next_setpoint = LAST, now

    # ------------------------------------------------------------------

    def _begin(self, command: Command, now: float) -> None:
        """A chunk goes out, and its motion runs."""
        self._brakes, self._next_brake = 0, math.inf
        self._follow_setpoints(now)
        self._command = command
        self._say(self._sent(command, now))

    def _say(self, command: Command) -> None:
        self.said = command.source
        self._publish(command)

    def _word(self, source: str, now: float) -> Command:
        last = self._command
        kept: Fields = {name: getattr(last, name) for name in KEPT} if last else {}
        if last and source == PREVIOUS:
            left, _ = self._executor.remaining(now)
            kept |= {name: getattr(last, name) for name in OF_CHUNK}
            kept |= dict(first=last.execution_horizon - max(1, len(left)))
        else:
            rest = self._executor.rest()
            kept |= dict(values=rest, execution_horizon=len(rest))
        return self._make(source, now, **kept)

    def _make(self, source: str, now: float, **fields: Any) -> Command:
        """A command of now that sends controllers nothing."""
        nothing = np.empty((0, self._executor.joints))
        usual: Fields = dict(stamp=None, first=0, confidence=UNKNOWN, deadline_met=False)
        usual |= dict(sequence=0, steps=0, prefill_ms=0.0, denoise_ms=0.0)
        usual |= dict(delay=0, latency=math.nan)
        usual |= dict(dt=self._executor.dt, age=self._executor.due(now).age, source=source)
        usual |= dict(points=nothing, velocities=nothing, times=nothing[:, 0])
        return Command(**usual | fields)

    def _sent(self, command: Command, now: float) -> Command:
        """The same, with the motion to come; more of it is sent halfway to its early end."""
        times, points, velocities = self._executor.points(now, self._measured())
        self._next_part = now + (self._executor.cut - now) / 2
        self._sent_at = now
        return replace(command, times=times, points=points, velocities=velocities)
