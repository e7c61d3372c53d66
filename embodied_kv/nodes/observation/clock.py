"""The world's clock of a node, and the throttle that decides when a frame is due.

A node uses three clocks. Messages are stamped by the ROS clock (ns). The engine's deadlines are on
the steady clock (s). Ages and timeouts are on the world's clock (s): ROS time if `use_sim_time` is
set, so that a simulation may run slower, faster or not at all; otherwise the steady clock, which
cannot be set. A stamp is converted to a moment of the world's clock when its message arrives, and
a moment to a deadline when the engine is called, as if simulated time ran at normal speed.
"""

from __future__ import annotations

import time
from typing import cast

from rclpy.clock import Clock, ROSClock

STEP = 20_000_000  # ns; a clock that is only corrected changes less between two calls
PRECISION = 5_000_000  # ns that a comparison of two clocks may take
EARLY = 0.25  # share of a period by which a frame may be early, because cameras jitter


class WorldClock:
    """The world's clock (s) of a node; `ros` is its ROS clock."""

    def __init__(self, ros: Clock) -> None:
        self._ros = cast(ROSClock, ros)  # rclpy annotates that of a node as any Clock

    @property
    def is_simulated(self) -> bool:
        """Return whether the topic /clock sets the time."""
        return self._ros.ros_time_is_active

    @property
    def stamp(self) -> int:
        """Return the present time of the ROS clock (ns)."""
        return self._ros.now().nanoseconds

    def now(self) -> float:
        """Return the present time (s); 0 until a simulation has published its time."""
        return self.stamp / 1e9 if self.is_simulated else time.monotonic()

    def moment(self, stamp: int) -> float:
        """Return the moment (s) of a stamp; at most now, because clocks of machines differ."""
        return self.now() - max(0.0, (self.stamp - stamp) / 1e9)

    def to_steady(self, moment: float) -> float:
        """Return a moment on the steady clock of this process (s)."""
        return time.monotonic() + (moment - self.now())

    def from_steady(self, moment: float) -> float:
        """Return the moment of a time on the steady clock of this process (s)."""
        return self.now() + (moment - time.monotonic())


class StepDetector:
    """Detects that the system clock was set, by its offset from the steady clock."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock
        self._offset: int | None = None  # ns

    def has_stepped(self) -> bool:
        """Return whether the clock was set by more than STEP since the last call."""
        if self._clock.is_simulated:
            return False
        before = time.monotonic_ns()
        stamp = self._clock.stamp
        if time.monotonic_ns() - before > PRECISION:  # another process ran in between
            return False
        known, self._offset = self._offset, stamp - before
        return known is not None and abs(self._offset - known) > STEP


class FrameThrottle:
    """Throttle that admits a frame every `period` s on average, when a camera sends an image."""

    def __init__(self, period: float) -> None:
        self.period = period
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Make a frame due at once."""
        self._due = now

    def is_due(self, now: float) -> bool:
        """Return whether a frame is due, or almost."""
        return now >= self._due - EARLY * self.period

    def record_frame(self, now: float) -> None:
        """Note that a frame was made; periods without a frame are not made up for."""
        self._due = max(self._due, now - EARLY * self.period) + self.period
