"""The clock on which a node measures the world.

A node meets three clocks. Messages are stamped by the ROS clock, ns. The engine races on the
steady clock, s. In between lies what a node measures about the world: how old an observation is,
how long a camera has been silent, when the next frame is due. All of that is in s on one clock,
the world's: ROS time where `use_sim_time` is set, so that a simulation may run slower, faster or
not at all; else the steady clock, which nobody sets.

A stamp becomes a moment of the world when its message arrives, and a moment becomes a deadline
when the engine is asked: then simulated time is taken to run as fast as the steady clock.
"""

from __future__ import annotations

import time

from rclpy.clock import Clock


class WorldClock:
    """s of the world, for a node with this ROS clock."""

    def __init__(self, ros: Clock) -> None:
        self._ros = ros

    @property
    def is_simulated(self) -> bool:
        """Whether /clock decides."""
        return self._ros.ros_time_is_active

    @property
    def stamp(self) -> int:
        """ns on the ROS clock: of now, for messages."""
        return self._ros.now().nanoseconds

    def now(self) -> float:
        """0 as long as a simulation has not said what time it is."""
        return self.stamp / 1e9 if self.is_simulated else time.monotonic()

    def moment(self, stamp: int) -> float:
        """Of a stamp, ns on the ROS clock; now at the latest, as clocks of two machines differ."""
        return self.now() - max(0.0, (self.stamp - stamp) / 1e9)

    def steady(self, moment: float) -> float:
        """The same on the steady clock of this process."""
        return time.monotonic() + (moment - self.now())

    def of_steady(self, moment: float) -> float:
        """The inverse of `steady`."""
        return self.now() + (moment - time.monotonic())
