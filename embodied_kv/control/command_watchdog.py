"""Decide which velocity set-points reach the controllers, and when the controllers receive zeros.

A velocity controller keeps its last value, so that silence does not stop the arm. The command
watchdog runs in a separate process between the action node and these controllers: it forwards
set-points and replaces missing ones by zeros. This module contains its rules, without ROS.

Times are ns of CLOCK_MONOTONIC, which all processes of one machine share.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Output

SECOND = 1_000_000_000  # ns
MIN_TIMEOUT, PERIODS = 0.06, 2.5  # s; set-point periods
MAX_PERIOD = 1.0  # s: the parameter setpoint_rate is at least 1 per second
ZEROS, BETWEEN = 5, 20_000_000  # zeros sent for each stop, and ns between them
GRACE = 1.0  # s in which a motion may be completed after SIGINT or SIGTERM


def timeout(period: float) -> int:
    """Return the time (ns) without set-points that ends a motion. period: of set-points (s)."""
    return round(max(MIN_TIMEOUT, PERIODS * period) * SECOND)


@dataclass(frozen=True)
class VelocityOutputs:
    """The outputs of a robot that take velocities; their values are concatenated in this order.

    limits: highest absolute value of each, rad/s or m/s; inf where the contract has none.
    """

    outputs: tuple[Output, ...]
    limits: tuple[float, ...]

    @classmethod
    def of(cls, robot: Embodiment) -> VelocityOutputs:
        """Return the velocity and twist outputs of a robot."""
        outputs = tuple(output for output in robot.outputs if output.is_velocity)
        stated = [robot.contract.limits[axis].velocity for o in outputs for axis in o.axes]
        return cls(outputs, tuple(math.inf if limit is None else limit for limit in stated))

    @property
    def index(self) -> tuple[int, ...]:
        """Return the indices of the values in an action."""
        return tuple(place for output in self.outputs for place in output.index)

    @property
    def layout(self) -> int:
        """Return a digest (64 bit) of topics, axes and limits: equal contracts have equal ones."""
        facts = [(o.topic, o.type, o.axes, o.frame) for o in self.outputs], self.limits
        return int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:8], 'little')

    def split(self, values: Sequence[float]) -> Iterator[tuple[Output, Sequence[float]]]:
        """Yield each output with its values."""
        start = 0
        for output in self.outputs:
            yield output, values[start : (start := start + len(output.axes))]


@dataclass(frozen=True)
class VelocitySetpoint:
    """A set-point as in VelocitySetpoint.msg. started (the motion), sent: ns. period: s."""

    layout: int
    sender: int
    started: int
    sent: int
    period: float
    values: Sequence[float]


class CommandWatchdog:
    """Forwards set-points, and ends a motion with zeros if its set-points fail.

    A motion is the sequence of set-points of one sender from rest to rest. Each of them contains
    the start time of the motion. A motion that the watchdog ended never continues: the sender must
    start another one. Therefore a suspended suite cannot return the arm to an old velocity.

    Args:
        outputs: The velocity outputs of the robot.
        publish: Sends values to the controllers.
        now: The present time.
    """

    def __init__(
        self, outputs: VelocityOutputs, publish: Callable[[Sequence[float]], None], now: int
    ) -> None:
        self._limits, self._layout, self._publish = outputs.limits, outputs.layout, publish
        self._zero = [0.0] * len(self._limits)
        self._last: VelocitySetpoint | None = None  # of the present motion; None at rest
        self._zeros, self._next_zero = 0, 0
        self._end: int | None = None  # when the grace ends; None before `end`
        self.stopped, self.reason = now, ''
        self.forwarded = self.refused = self.stops = 0

    @property
    def is_moving(self) -> bool:
        """Whether the last values sent to the controllers were not all zero."""
        return self._last is not None

    @property
    def is_finished(self) -> bool:
        """Whether the process may end: `end` was called and all zeros were sent."""
        return self._end is not None and not self.is_moving and not self._zeros

    def forward(self, setpoint: VelocitySetpoint, now: int) -> str:
        """Send a set-point to the controllers, within the limits, or end the motion.

        Returns why the set-point was refused; '' if it was sent.
        """
        if refusal := self._refusal(setpoint, now):
            self.refused += 1
            if self.is_moving:
                self._stop(refusal, now)
            return refusal
        values = [max(-m, min(m, v)) for v, m in zip(setpoint.values, self._limits, strict=True)]
        self._last = setpoint if any(values) else None
        if self.is_moving:
            self._zeros = 0
        self.forwarded += 1
        self._publish(values)
        return ''

    def check(self, now: int) -> None:
        """End a motion whose set-points are missing, and send the zeros that are due."""
        if (last := self._last) is not None:
            silence = now - last.sent
            if silence > timeout(last.period):
                self._stop(f'no set-point for {silence / SECOND:.3f} s', now)
            elif self._end is not None and now >= self._end:
                self._stop('the watchdog shuts down', now)
        if self._zeros and now >= self._next_zero:
            self._zeros, self._next_zero = self._zeros - 1, now + BETWEEN
            self._publish(self._zero)

    def wait(self, now: int) -> float:
        """Return the time (s) until `check` has something to do; inf for never."""
        due = [self._next_zero] if self._zeros else []
        if (last := self._last) is not None:
            due.append(last.sent + timeout(last.period))
            due += [] if self._end is None else [self._end]
        return max(0.0, (min(due) - now) / SECOND) if due else math.inf

    def end(self, now: int, grace: float = GRACE) -> None:
        """Let the present motion be completed within `grace` s, and start no other one."""
        self._end = now + round(grace * SECOND)

    def _stop(self, reason: str, now: int) -> None:
        self._last = None
        self.stopped, self.reason = now, reason
        self.stops += 1
        self._zeros, self._next_zero = ZEROS, now
        self.check(now)

    def _refusal(self, new: VelocitySetpoint, now: int) -> str:
        if new.layout != self._layout or len(new.values) != len(self._limits):
            return 'the set-points are of another contract'
        if not all(map(math.isfinite, new.values)):
            return 'a set-point is not finite'
        if not 0 < new.period <= MAX_PERIOD:
            return f'the period of set-points must be > 0 and <= {MAX_PERIOD} s'
        if not new.started <= new.sent <= now:
            return 'a set-point is of the future: the sender must run on this machine'
        if now - new.sent > timeout(new.period):
            return f'a set-point arrived {(now - new.sent) / SECOND:.3f} s late'
        if self._last is not None and new.sender != self._last.sender:
            return 'two publishers send set-points; only one action node may run'
        if not any(new.values):
            return ''
        if new.started <= self.stopped:
            return self.reason or 'the motion started before the watchdog'
        if self._end is not None and not self.is_moving:
            return 'the watchdog shuts down'
        return ''
