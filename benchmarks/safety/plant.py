"""Simulated joints with their controllers: what an arm does with the commands of the suite.

Three controllers are simulated:

- `TrajectoryController` obeys the published rules of `joint_trajectory_controller` (Jazzy). It
  rejects trajectories whose joints do not match, whose times do not increase, which do not end at
  rest, or which end in the past. A trajectory without a stamp starts at its receipt. Before the
  first point the controller interpolates from the measured state. Between points it interpolates
  by cubics. The time of the trajectory advances at the speed scaling. An inactive controller drops
  trajectories and keeps its output.
- `PositionController` and `VelocityController` are forward command controllers: they keep their
  last value, without a timeout.

The joints follow their controller ideally unless they are blocked. Each step covers the time that
has passed, so that a busy machine changes no distance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.nodes.common.conversions import nanoseconds

RATE = 250.0  # Hz
EVERY = 2  # steps between two joint states
WINDOW = 0.05  # s over which a speed is measured
STILL = 0.002  # rad: a joint that stays within this distance of its last position is at rest
SCALING = 'speed_scaling_state_broadcaster/speed_scaling'  # percent
SECOND = 1_000_000_000  # ns


class TrajectoryController:
    """A joint trajectory controller.

    Attributes:
        active: Whether it executes trajectories.
        scale: Speed scaling, 0 to 1.
        stamps: Stamp (ns) of each accepted trajectory; 0 where it had none.
        rejected: Reason of each trajectory that was not accepted.
    """

    def __init__(self, node: Node, topic: str, joints: Sequence[str], start: ArrayLike) -> None:
        self._clock, self._joints = node.get_clock(), list(joints)
        self.command = np.array(start, float)
        self.active, self.scale = True, 1.0
        self.stamps: list[int] = []
        self.rejected: list[str] = []
        self._new: JointTrajectory | None = None
        self._knots: tuple[NDArray, NDArray, NDArray] | None = None
        self._time = 0.0  # s, of the trajectory
        node.create_subscription(JointTrajectory, topic, self._on_trajectory, QoSProfile(depth=1))

    def activate(self, position: NDArray[np.float64]) -> None:
        """Hold a position, and execute the trajectories that are received from now on."""
        self._new = self._knots = None
        self.command, self.active = position.copy(), True

    def update(self, passed: float, position: NDArray, velocity: NDArray) -> NDArray[np.float64]:
        """Return the commanded positions [joints] after so many s, given the measured state."""
        self._time += passed * self.scale
        new, self._new = self._new, None
        if new is not None:
            self._knots = self._joined(new, position, velocity)
        knots = self._knots
        if knots is not None and self.active:
            self.command = _cubic(self._time, *knots)
        return self.command

    def _joined(
        self, message: JointTrajectory, position: NDArray, velocity: NDArray
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Return times [n], positions and velocities [n, joints] of a trajectory that begins."""
        order = [message.joint_names.index(joint) for joint in self._joints]
        stamp = nanoseconds(message.header.stamp)
        self._time = (self._clock.now().nanoseconds - stamp) / SECOND if stamp else 0.0
        times = np.array([_time(point) / SECOND for point in message.points])
        positions = np.array([point.positions for point in message.points])[:, order]
        velocities = np.array([point.velocities for point in message.points])[:, order]
        if self._time >= times[0]:
            return times, positions, velocities
        return (
            np.append(self._time, times),
            np.vstack([position, positions]),
            np.vstack([velocity, velocities]),
        )

    def _on_trajectory(self, message: JointTrajectory) -> None:
        if reason := self._rejection(message):
            self.rejected.append(reason)
            return
        self._new = message
        self.stamps.append(nanoseconds(message.header.stamp))

    def _rejection(self, message: JointTrajectory) -> str:
        points, stamp = message.points, nanoseconds(message.header.stamp)
        if not self.active:
            return 'the controller is inactive'
        if sorted(message.joint_names) != sorted(self._joints):
            return 'the joints do not match'
        if not points or any(len(p.velocities) != len(self._joints) for p in points):
            return 'points, or their velocities, are missing'
        if any(abs(velocity) > 1e-7 for velocity in points[-1].velocities):
            return 'the last velocity is not zero'
        if any(_time(a) >= _time(b) for a, b in pairwise(points)):
            return 'the times do not increase'
        if stamp and stamp + _time(points[-1]) < self._clock.now().nanoseconds:
            return 'the trajectory ends in the past'
        return ''


class PositionController:
    """A forward position controller: the joints are at the last commanded positions."""

    def __init__(self, node: Node, topic: str, joints: Sequence[str], start: ArrayLike) -> None:
        self.command = np.array(start, float)
        node.create_subscription(Float64MultiArray, topic, self._on_value, QoSProfile(depth=1))

    def update(self, passed: float, position: NDArray, velocity: NDArray) -> NDArray[np.float64]:
        """Return the commanded positions [joints]."""
        return self.command

    def _on_value(self, message: Float64MultiArray) -> None:
        self.command = np.array(message.data)


class VelocityController:
    """A forward velocity controller: the joints move at the last commanded velocities."""

    def __init__(self, node: Node, topic: str, joints: Sequence[str], start: ArrayLike) -> None:
        self.velocity = np.zeros(len(joints))
        node.create_subscription(Float64MultiArray, topic, self._on_value, QoSProfile(depth=1))

    def update(self, passed: float, position: NDArray, velocity: NDArray) -> NDArray[np.float64]:
        """Return the positions [joints] after so many s, given the measured ones."""
        return position + self.velocity * passed

    def _on_value(self, message: Float64MultiArray) -> None:
        self.velocity = np.array(message.data)


Controller = TrajectoryController | PositionController | VelocityController


class Joints:
    """Some joints, the controller that moves them, and the driver that publishes their state.

    Attributes:
        blocked: Whether the joints stand, whatever the controller commands.
        silent: Whether no joint states are published.
        distort: Takes the positions and returns those that are published.
        log: Times (s, CLOCK_MONOTONIC) and positions [joints] of all steps.
    """

    def __init__(
        self,
        node: Node,
        states: str,
        names: Sequence[str],
        start: ArrayLike,
        controller: Controller,
    ) -> None:
        self._node, self.names, self.controller = node, list(names), controller
        self.position, self.velocity = np.array(start, float), np.zeros(len(self.names))
        self.blocked = self.silent = False
        self.distort: Callable[[NDArray], NDArray] = lambda positions: positions
        self.log: list[tuple[float, NDArray[np.float64]]] = []
        self._publisher = node.create_publisher(JointState, states, QoSProfile(depth=10))

    def step(self, passed: float) -> None:
        """Move for so many s."""
        before = self.position
        command = self.controller.update(passed, before, self.velocity)
        if not self.blocked:
            self.position = np.array(command)
        self.velocity = (self.position - before) / passed
        self.log.append((time.monotonic(), self.position))

    def publish(self) -> None:
        """Publish the joint state, unless the driver is silent."""
        if self.silent:
            return
        positions = self.distort(self.position).tolist()
        message = JointState(name=self.names, position=positions, velocity=self.velocity.tolist())
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def motion(self, since: float, limits: ArrayLike) -> Motion:
        """Return how the joints have moved from a moment until now.

        Args:
            since: The moment (s, CLOCK_MONOTONIC).
            limits: Velocity limits [joints].
        """
        log = list(self.log)
        times = np.array([moment for moment, _ in log])
        first = max(0, int(np.searchsorted(times, since)) - 1)
        times, places = times[first:], np.array([place for _, place in log[first:]])
        moves = np.flatnonzero((np.abs(places - places[-1]) > STILL).any(axis=1))
        rest = 0.0
        if len(moves):
            rest = float(max(0.0, times[min(moves[-1] + 1, len(times) - 1)] - since))
        return Motion(
            distance=float(np.abs(places - places[0]).max()),
            rest=rest,
            rests=bool(rest < times[-1] - since - WINDOW),
            speed=_top_speed(times, places, np.asarray(limits, float)),
        )

    def speed(self) -> float:
        """Return the largest speed (rad/s) of the last WINDOW."""
        log = self.log[-int(2 * RATE * WINDOW) :]
        times = np.array([moment for moment, _ in log])
        return _top_speed(
            times, np.array([p for _, p in log]), np.ones(len(self.names)), last=True
        )


@dataclass(frozen=True)
class Motion:
    """How joints moved from a moment on.

    distance: the largest displacement of any joint, rad. rest: the time (s) after which no joint
    moved. rests: whether the joints were at rest at the end. speed: the largest speed over WINDOW,
    relative to the velocity limit of the joint.
    """

    distance: float
    rest: float
    rests: bool
    speed: float


class Plant:
    """Steps joints at RATE, on a thread with a node of its own, until `close`.

    Attributes:
        scaling: Whether the speed scaling of the first joints is published.
    """

    def __init__(self, node: Node, joints: Sequence[Joints]) -> None:
        self.joints, self._node, self.scaling = list(joints), node, False
        self._percent = node.create_publisher(Float64, SCALING, QoSProfile(depth=1))
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._over = False
        self._thread = threading.Thread(target=self._run, name='plant', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and destroy the node."""
        self._over = True
        self._thread.join()
        self._executor.shutdown()
        self._node.destroy_node()

    def _run(self) -> None:
        last, count = time.monotonic(), 0
        while not self._over:
            due = last + 1 / RATE
            while (left := due - time.monotonic()) > 0:
                self._executor.spin_once(timeout_sec=left)
            self._executor.spin_once(timeout_sec=0)  # also after a late step
            now, count = time.monotonic(), count + 1
            for joints in self.joints:
                joints.step(now - last)
                if count % EVERY == 0:
                    joints.publish()
            if self.scaling and count % (5 * EVERY) == 0:
                self._percent.publish(Float64(data=100.0 * self.joints[0].controller.scale))
            last = now


def _time(point: object) -> int:
    """Return the time_from_start (ns) of a point."""
    return point.time_from_start.sec * SECOND + point.time_from_start.nanosec


def _cubic(now: float, times: NDArray, positions: NDArray, velocities: NDArray) -> NDArray:
    """Return the position [joints] at a moment: cubics between the points, else the nearest."""
    if now <= times[0]:
        return positions[0]
    if now >= times[-1]:
        return positions[-1]
    i = int(np.searchsorted(times, now, side='right')) - 1
    h = times[i + 1] - times[i]
    x = (now - times[i]) / h
    return (
        (1 + 2 * x) * (1 - x) ** 2 * positions[i]
        + x * (1 - x) ** 2 * h * velocities[i]
        + x**2 * (3 - 2 * x) * positions[i + 1]
        + x**2 * (x - 1) * h * velocities[i + 1]
    )


def _top_speed(times: NDArray, places: NDArray, limits: NDArray, last: bool = False) -> float:
    """Return the largest speed over WINDOW, relative to the limits. last: of the end alone."""
    starts = np.searchsorted(times, times - WINDOW)
    ends = np.flatnonzero((times - times[0] >= WINDOW) & (starts < np.arange(len(times))))
    ends = ends[-1:] if last else ends
    if not len(ends):
        return 0.0
    begins = starts[ends]
    passed = (times[ends] - times[begins])[:, None]
    return float((np.abs(places[ends] - places[begins]) / passed / limits).max())
