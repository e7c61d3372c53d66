"""A control loop, controllers and an arm in simulated time, with delayed messages."""

from collections import deque

import numpy as np
from control_cases import chunk, limits, make_executor
from jtc import SECOND, JointTrajectoryController, Point, Trajectory

from embodied_kv.control.command import Measured
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.safety_state_machine import SafetyStateMachine

PERIOD = DT = 0.1
TICK = 0.002  # s, of the simulation and of the controllers


def message(command, names):
    """Return a command as a node sends it: with stamp 0 and whole nanoseconds."""
    nodes = zip(command.times, command.points, command.velocities, strict=True)
    points = [Point(round(t * SECOND), list(p), list(v)) for t, p, v in nodes]
    return Trajectory(list(names), points)


class Stand:
    """An armed arm of two joints that follows its controller.

    delay, state_delay: delay (s) of commands and of joint states. skew: s by which the
    controller's clock is ahead. lag: s by which the arm is behind its controller. follows: whether
    the arm executes the output of its controller.
    """

    def __init__(
        self,
        lim=None,
        *,
        start=(0.0, 0.0),
        delay=0.0,
        state_delay=0.0,
        skew=0.0,
        lag=0.0,
        armed=True,
        controller=None,
        loop=None,
        **options,
    ):
        self.limits = limits(velocity=2.0, acceleration=10.0) if lim is None else lim
        self.now, self.delay, self.state_delay, self.skew = 100.0, delay, state_delay, skew
        self.arm, self.speed = np.array(start, float), np.zeros(len(start))
        self.follows, self.speaks = True, True
        self.controller = JointTrajectoryController(
            self.limits.joints, start, cycle=round(TICK * SECOND), **(controller or {})
        )
        self.commands, self.setpoints, self.failures, self.rejected = [], [], [], []
        self.path = [self.arm.copy()]  # output of the controller at each tick
        self._states, self._under_way = deque(), deque()
        self._servo = deque(maxlen=1 + round(lag / TICK))
        self._seen = deque(maxlen=100)  # positions of the last 0.2 s
        self._measured, self.measured = None, []
        executor = make_executor(self.limits, **dict(max_tracking_error=0.3) | options)
        self.safety = SafetyStateMachine(armed=armed)
        self.loop = ControlLoop(
            executor,
            self.safety,
            PERIOD,
            measured=lambda: self._measured,
            publish=self._publish,
            publish_setpoint=self.setpoints.append,
            failed=self.failures.append,
            clock=lambda: self.now,
            **(loop or {}),
        )
        self._due, self._sequence = 0.0, 0

    @property
    def executor(self):
        return self.loop.executor

    def _publish(self, command):
        self.commands.append((self.now, command))
        if len(command.points):
            self._under_way.append((self.now + self.delay, message(command, self.limits.joints)))

    def sources(self, since=0.0):
        return [command.source for moment, command in self.commands if moment >= since]

    def sent(self, since=0.0):
        """Return the commands that contain a motion."""
        return [c for moment, c in self.commands if moment >= since and len(c.points)]

    def offer(self, values, age=0.05, **others):
        """Offer a chunk of values [n, joints] now, for a frame of `age` s ago."""
        observed = self.now - age
        self._sequence += 1
        self.loop.expect(observed + PERIOD)
        values = np.asarray(values, float)
        values = np.repeat(values[:, None], len(self.arm), 1) if values.ndim == 1 else values
        others = dict(sequence=self._sequence, deadline=observed + PERIOD) | others
        self.loop.offer(chunk(values, DT, **others))
        self._due = 0.0

    def turn(self):
        """Run one turn of the loop now."""
        pause = self.loop.turn()
        self._due = np.inf if pause is None else self.now + pause

    def run(self, seconds):
        """Advance the time of loop, controllers and arm."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            if self.speaks:
                self._states.append((self.now, self.arm.copy()))
            else:
                self._seen.clear()  # velocities are measured over the received states
            while self._states and self._states[0][0] <= self.now - self.state_delay:
                moment, position = self._states.popleft()
                self._seen.append(position)
                velocity = (position - self._seen[0]) / (TICK * (len(self._seen) - 1 or np.nan))
                last = list(self._seen)[-25:]
                recent = (position - last[0]) / (TICK * (len(last) - 1 or np.nan))
                self._measured = Measured(position, moment, velocity, recent)
                self.measured.append((moment, position))
            if self.loop._changed or self.now >= self._due:
                self.turn()
            self._control()

    def _control(self):
        clock = round((self.now + self.skew) * SECOND)
        while self._under_way and self._under_way[0][0] <= self.now:
            _, sent = self._under_way.popleft()
            if reason := self.controller.receive(sent, clock):
                self.rejected.append(reason)
        self.controller.update(clock, self.arm, self.speed)
        self.path.append(self.controller.positions.copy())
        self._servo.append((self.controller.positions.copy(), self.controller.velocities))
        if self.follows:
            self.arm, self.speed = self._servo[0]

    def by_hand(self, *position):
        """Move the arm by hand and restart its controller there."""
        self.arm, self.speed = np.array(position, float), np.zeros(len(position))
        options = {k: getattr(self.controller, f'_{k}') for k in ('replacement', 'from_desired')}
        self.controller = JointTrajectoryController(
            self.limits.joints, position, cycle=round(TICK * SECOND), **options
        )
        self.path = [self.arm.copy()]
        self._seen.clear()

    def move_by_another_program(self, position, seconds):
        """Send the controller a linear trajectory as another program would."""
        count = len(self.limits.joints)
        points = [Point(round(seconds * SECOND), [position] * count)]
        sent = Trajectory(list(self.limits.joints), points)
        assert not self.controller.receive(sent, round((self.now + self.skew) * SECOND))

    def rates(self):
        """Return the speeds [n, joints] and accelerations [n - 1, joints] of the output."""
        speeds = np.diff(np.array(self.path), axis=0) / TICK
        return speeds, np.diff(speeds, axis=0) / TICK
