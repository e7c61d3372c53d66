"""What leaves for the robot, and when: commands, braking sent several times, set-points.

Knows the executor's motion and the guard. Does not decide what the arm does. Says nothing while an
operator has the arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embodied_kv.control.command import FRESH, PREVIOUS, Command, Leftover, Setpoint, TakeOver
from embodied_kv.control.guard import TAKEN_OVER, Guard
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk

UNKNOWN = np.empty(0, np.float32)  # the confidence in what nobody denoised, or nobody remembers
TIMES, BETWEEN = 3, 0.02  # how often braking is sent, and s between
LAST = 3  # set-points at rest, after the last one in motion
# What a command says of the newest chunk: as that does, whatever it tells, and while that runs.
OWN = ('sequence', 'steps', 'prefill_ms', 'denoise_ms')
KEPT = (*OWN, 'delay', 'latency')
OF_CHUNK = ('values', 'stamp', 'execution_horizon', 'confidence')


class Outgoing:
    """publish, publish_setpoint, setpoint_rate: as of the control loop. said: the last source."""

    def __init__(
        self,
        executor: TrajectoryExecutor,
        guard: Guard,
        publish: Callable[[Command], None],
        publish_setpoint: Callable[[Setpoint], None] | None,
        setpoint_rate: float,
    ) -> None:
        self._executor, self._guard = executor, guard
        self._publish, self._publish_setpoint = publish, publish_setpoint
        self._between_setpoints = 1.0 / setpoint_rate
        self._command: Command | None = None  # the newest chunk
        self.said = ''
        self.cease()

    # ------------------------------------------------------------------ what is said

    def fresh(self, chunk: ActionChunk, taken: TakeOver, now: float) -> None:
        """A chunk has taken over."""
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
                latency=now - self._executor.plan.observed,
                **{name: getattr(chunk, name) for name in OWN},
            ),
            now,
        )

    def resumed(self, leftover: Leftover, actions: np.ndarray, stamp: int, now: float) -> None:
        """What was left of an earlier chunk has begun."""
        fields = dict(values=actions, execution_horizon=len(actions), stamp=stamp)
        fields |= dict(sequence=leftover.sequence, steps=leftover.steps)
        self._begin(self._make(PREVIOUS, now, **fields), now)

    def goes_on(self, source: str, now: float, in_time: bool = False) -> None:
        """Word of what happens without a fresh chunk; the controllers are told nothing.

        in_time: none was due yet.
        """
        self._say(replace(self._word(source, now), deadline_met=in_time))

    def brakes(self, now: float) -> None:
        """The arm comes to rest along its way: sent from now on, several times."""
        self._brakes, self._next_brake = TIMES, now

    def cease(self) -> None:
        """Nothing more, not even the rest of what was begun."""
        self._brakes, self._next_brake = 0, math.inf
        self._last_setpoints, self._next_setpoint = 0, math.inf
        self._handed = -math.inf  # the moment of the newest set-point of this motion

    # ------------------------------------------------------------------ when

    @property
    def due(self) -> float:
        """The moment at which `send` has something to do."""
        return min(self._next_brake, self._next_setpoint)

    def catch_up(self, now: float) -> None:
        """Where set-points were late, what is to come is later by as much."""
        due = self._handed + 2 * self._between_setpoints
        if self._handed > -math.inf and now > due and self._executor.ends > due:
            self._executor.catch_up(self._handed, due, now)

    def send(self, now: float) -> None:
        """What is due now."""
        if now >= self._next_brake:
            self._brakes -= 1
            self._next_brake = now + BETWEEN if self._brakes else math.inf
            self._say(self._sent(self._word(self._executor.source(now), now), now))
        if now >= self._next_setpoint:
            self._send_setpoint(now)

    def _send_setpoint(self, now: float) -> None:
        """At the controllers' rate while the arm moves, and a few times where it stands."""
        if not self._executor.is_moving(now):
            self._last_setpoints -= 1
        self._next_setpoint = max(self._next_setpoint + self._between_setpoints, now)
        self._handed = now
        if self._last_setpoints <= 0:
            self._handed, self._next_setpoint = -math.inf, math.inf
        if self._guard.state != TAKEN_OVER:
            self._publish_setpoint(self._executor.due(now))

    # ------------------------------------------------------------------

    def _begin(self, command: Command, now: float) -> None:
        """A chunk goes out, and its motion runs."""
        self._brakes, self._next_brake = 0, math.inf
        if self._publish_setpoint is not None:
            self._last_setpoints, self._next_setpoint = LAST, now
        self._command = command
        self._say(self._sent(command, now))

    def _say(self, command: Command) -> None:
        if self._guard.state != TAKEN_OVER:
            self.said = command.source
            self._publish(command)

    def _word(self, source: str, now: float) -> Command:
        last = self._command
        kept = {name: getattr(last, name) for name in KEPT} if last else {}
        if last and source == PREVIOUS:
            left, _ = self._executor.remaining(now)
            kept |= {name: getattr(last, name) for name in OF_CHUNK}
            kept |= dict(first=last.execution_horizon - max(1, len(left)))
        else:
            rest = self._executor.rest()
            kept |= dict(values=rest, execution_horizon=len(rest))
        return self._make(source, now, **kept)

    def _make(self, source: str, now: float, **fields: object) -> Command:
        """A command of now that tells controllers nothing."""
        nothing = np.empty((0, self._executor.joints))
        usual = dict(stamp=None, first=0, confidence=UNKNOWN, deadline_met=False)
        usual |= dict(sequence=0, steps=0, prefill_ms=0.0, denoise_ms=0.0)
        usual |= dict(delay=0, latency=math.nan)
        usual |= dict(dt=self._executor.dt, age=self._executor.due(now).age, source=source)
        usual |= dict(points=nothing, velocities=nothing, times=nothing[:, 0])
        return Command(**usual | fields)

    def _sent(self, command: Command, now: float) -> Command:
        """The same, with the motion to come."""
        times, points, velocities = self._executor.points(now)
        return replace(command, times=times, points=points, velocities=velocities)
