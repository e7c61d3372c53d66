"""A model of joint_trajectory_controller by its published rules; tests send commands to it.

Each rule names its source: files of ros-controls/ros2_controllers at 94e74de, in
joint_trajectory_controller/. Positions are commanded; there is no PID and no tolerance. Moments
are whole nanoseconds, as in rclcpp. Messages are not modified. `scale` is the speed scaling; an
inactive controller (`active` False) drops messages and keeps its output.
"""

from dataclasses import dataclass, field, replace

import numpy as np

SECOND = 10**9
EPSILON = np.finfo(np.float32).eps


@dataclass(frozen=True)
class Point:
    """trajectory_msgs/JointTrajectoryPoint; [] for an empty field. time: time_from_start, ns."""

    time: int
    positions: list
    velocities: list = field(default_factory=list)
    accelerations: list = field(default_factory=list)
    effort: list = field(default_factory=list)


@dataclass(frozen=True)
class Trajectory:
    """trajectory_msgs/JointTrajectory. stamp: ns; 0 means as soon as it is received."""

    joint_names: list
    points: list
    stamp: int = 0


class JointTrajectoryController:
    """A joint_trajectory_controller with position commands.

    joints: names in the order of the controller. position: initial position of the arm.
    replacement: parameter allow_trajectory_replacement (true by default since 2026; before there
    was no such blending). from_desired: interpolate_from_desired_state. partial:
    allow_partial_joints_goal. moving_end: allow_nonzero_velocity_at_trajectory_end (false by
    default). cycle: ns between two updates. Its output: `positions`, `velocities`.
    """

    def __init__(
        self,
        joints,
        position,
        *,
        replacement=True,
        from_desired=False,
        partial=False,
        moving_end=False,
        effort=False,
        cycle=2_000_000,
    ):
        self.joints, self.cycle = list(joints), cycle
        self._replacement, self._from_desired = replacement, from_desired
        self._partial, self._moving_end, self._effort = partial, moving_end, effort
        self.positions = np.array(position, float)
        self.velocities = np.zeros(len(self.joints))
        self._new = self._points = None  # unprocessed message; points of the running trajectory
        self._start = 0  # start of the running trajectory, ns
        self._commanded = 0  # time of the output, ns
        self.scale, self.active = 1.0, True
        self._time, self._updated = 0, None  # time of the trajectory; time of the last update

    def receive(self, message, now):
        """Accept a message; return '' or why it is rejected (validate_trajectory_msg, .cpp)."""
        reason = self._rejects(message, now)
        if not reason and self.active:
            self._new = message  # topic_callback: "always replace old msg with new one for now"
        return reason

    def _rejects(self, message, now):
        names, points = message.joint_names, message.points
        if not self._partial and len(names) != len(self.joints):
            return "Joints on incoming trajectory don't match the controller joints."
        if not names:
            return 'Empty joint names on incoming trajectory.'
        if not points:
            return 'Empty trajectory received.'
        for name in names:
            if name not in self.joints:
                return f"Incoming joint {name} doesn't match the controller's joints."
        if not self._moving_end:
            for velocity in points[-1].velocities:
                if abs(velocity) > EPSILON:
                    return 'Velocity of last trajectory point is not zero'
        if message.stamp and message.stamp + points[-1].time < now:
            return 'Received trajectory with non-zero start time that ends in the past'
        before = None
        for point in points:
            if before is not None and point.time <= before:
                return 'Time between points is not strictly increasing'
            before = point.time
            if len(point.positions) != len(names):
                return 'Mismatch between joint_names size and positions'
            for values in (point.velocities, point.accelerations):
                if values and len(values) != len(names):
                    return 'Mismatch between joint_names size and velocities or accelerations'
            if point.effort and not self._effort:
                return 'Trajectories with effort fields are not supported'
        return ''

    def update(self, now, measured, speed=None):
        """Run one cycle (src/joint_trajectory_controller.cpp, update).

        measured, speed: the state interfaces; speed is None without velocities ([] in the .cpp).
        The output is the sample of the next cycle ("Sample setpoint for next control cycle").
        """
        passed = 0 if self._updated is None else now - self._updated
        self._time, self._updated = self._time + round(passed * self.scale), now
        if self._new is not None:
            self._install(self._new, now, np.asarray(measured, float), speed)
            self._new, self._time = None, now  # update: "traj_time_ = time"
        if self._points is not None and self.active:
            before = self.positions
            self.positions, self.velocities = self._sample(self._time + self.cycle)
            if self.scale < 1.0:
                self.velocities = (self.positions - before) * SECOND / self.cycle
            self._commanded = now + self.cycle

    def _install(self, message, now, measured, speed):
        points = [self._sorted(message.joint_names, point) for point in message.points]
        if self._replacement and self._points is not None and len(self._points) > 1:
            # blend_with_active_trajectory: a bridge of the old trajectory, then the new points.
            start, old = max(message.stamp, now), self._time  # old: time of the trajectory
            sample = self._sample(old + start - now)
            bridge = Point(start - now, *(list(values) for values in sample))
            kept = [p for p in self._points if old < self._start + p.time < old + start - now]
            kept = [replace(p, time=self._start + p.time - old) for p in kept]
            points = [replace(p, time=p.time + start - now) for p in points]
            if bridge.time < points[0].time:
                kept.append(bridge)
            points, stamp = kept + points, 0
        else:
            stamp = message.stamp
        # update: set_point_before_trajectory_msg with the desired or the measured state. There
        # (src/trajectory.cpp) an unknown velocity is zero where the first point has one.
        if self._from_desired:
            self._before = self._commanded or now, self.positions, self.velocities
        else:
            speed = np.zeros(len(self.joints)) if speed is None else np.asarray(speed, float)
            self._before = now, measured, speed
        self._points = points
        # src/trajectory.cpp, sample: "trajectory_start_time_ = sample_time" for stamp 0.
        self._start = stamp or now

    def _sorted(self, names, point):
        """Return a point for all joints, in the order of the controller.

        fill_partial_goal (a missing joint stays), then sort_to_local_joint_order.
        """

        def each(values, missing):
            given = dict(zip(names, values, strict=True)) if values else {}
            return [
                given.get(joint, missing[i]) if values else 0
                for i, joint in enumerate(self.joints)
            ]

        zero = np.zeros(len(self.joints))
        return Point(
            point.time,
            each(point.positions, self.positions),
            each(point.velocities, zero) if point.velocities else [],
            each(point.accelerations, zero) if point.accelerations else [],
        )

    def _sample(self, now):
        """Return positions and velocities at `now` (src/trajectory.cpp, Trajectory::sample)."""
        points = self._points
        first = self._start + points[0].time
        if now < first:
            since, position, velocity = self._before
            before = Point(0, list(position), list(velocity))
            return _between(since, before, first, points[0], now)
        for point, after in zip(points, points[1:], strict=False):
            since, until = self._start + point.time, self._start + after.time
            if since <= now < until:
                return _between(since, point, until, after, now)
        last = points[-1]  # "whole animation has played out"
        zero = np.zeros(len(self.joints))
        return np.array(last.positions), np.array(last.velocities) if last.velocities else zero


def _between(since, a, until, b, now):
    """Interpolate linearly, cubic or quintic (src/trajectory.cpp, interpolate_between_points)."""
    t, whole = (now - since) / SECOND, (until - since) / SECOND
    speeds, bends = a.velocities and b.velocities, a.accelerations and b.accelerations
    if t < 0 or t > whole:
        t, speeds, bends = min(max(t, 0.0), whole), False, False
    pa, pb = np.array(a.positions), np.array(b.positions)
    if not speeds and not bends:
        slope = (pb - pa) / whole if whole else np.zeros_like(pa)
        return pa + t * slope, slope
    va, vb = np.array(a.velocities), np.array(b.velocities)
    if not bends:
        c2 = (-3 * pa + 3 * pb - 2 * va * whole - vb * whole) / whole**2
        c3 = (2 * pa - 2 * pb + va * whole + vb * whole) / whole**3
        return pa + t * va + t**2 * c2 + t**3 * c3, va + 2 * t * c2 + 3 * t**2 * c3
    aa, ab, w = np.array(a.accelerations), np.array(b.accelerations), whole
    c3 = (20 * (pb - pa) - 3 * aa * w**2 + ab * w**2 - 12 * va * w - 8 * vb * w) / (2 * w**3)
    c4 = (30 * (pa - pb) + 3 * aa * w**2 - 2 * ab * w**2 + 16 * va * w + 14 * vb * w) / (2 * w**4)
    c5 = (12 * (pb - pa) - aa * w**2 + ab * w**2 - 6 * va * w - 6 * vb * w) / (2 * w**5)
    position = pa + va * t + aa * t**2 / 2 + c3 * t**3 + c4 * t**4 + c5 * t**5
    return position, va + aa * t + 3 * c3 * t**2 + 4 * c4 * t**3 + 5 * c5 * t**4
