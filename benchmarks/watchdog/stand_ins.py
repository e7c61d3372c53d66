"""Stand-ins around the command watchdog: a velocity controller, and an action node that moves it.

ROS is imported here because the real outputs of an action node and the real watchdog process are
measured. `... stand_ins NAMESPACE CONTRACT SPEED RATE WAY` runs the action node: it moves the
first velocity axis at a constant velocity until it is ended.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from trajectory_msgs.msg import JointTrajectory

from benchmarks.common.workers import environment
from embodied_kv.control.command import FRESH, Setpoint
from embodied_kv.control.command_watchdog import VelocityOutputs
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.control.arm_outputs import ArmOutputs
from embodied_kv.nodes.control.controllers import KINDS, setpoint_message
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Output

ACCELERATION = 5.0  # rad/s²
WATCHED, DIRECT = WAYS = ('watched', 'direct')
MOVES, PROBLEM = 'moves', 'problem: '  # lines that the action node prints


@contextmanager
def ros() -> Iterator[None]:
    """Start ROS in this process, and shut it down at the end."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield
    finally:
        rclpy.try_shutdown()


@contextmanager
def controller(namespace: str, contract: str) -> Iterator[KeepingController]:
    """Yield a controller for the first velocity output of a contract."""
    node = rclpy.create_node('controller', namespace=namespace)
    output = VelocityOutputs.of(Embodiment.load(contract)).outputs[0]
    keeping = KeepingController(node, output)
    try:
        yield keeping
    finally:
        keeping.close()
        node.destroy_node()


GRIPPER = 'gripper_controller/joint_trajectory'  # of franka and libero; it must have a subscriber


class KeepingController:
    """A forward command controller: it keeps its last value, without a timeout.

    node: not in any executor. log: times (s, CLOCK_MONOTONIC) and values received.
    """

    def __init__(self, node: Node, output: Output) -> None:
        self.log: list[tuple[float, tuple[float, ...]]] = []
        node.create_subscription(
            KINDS[output.type], output.topic, self._on_value, QoSProfile(depth=1)
        )
        node.create_subscription(JointTrajectory, GRIPPER, lambda _: None, QoSProfile(depth=1))
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._over = False
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    @property
    def speed(self) -> float:
        """Return the largest absolute value that the controller holds."""
        return max(map(abs, self.log[-1][1])) if self.log else 0.0

    def run_on(self, since: float, until: float) -> tuple[float, float]:
        """Return for how long (s) and how far (rad or m) an ideal arm moves between two times."""
        log = list(self.log)
        before = [entry for entry in log if entry[0] <= since]
        held = [(since, before[-1][1])] if before else []
        held += [entry for entry in log if since < entry[0] < until]
        steps = list(pairwise([*held, (until, ())]))
        moved = [end for (_, values), (end, _) in steps if any(values)]
        far = [np.multiply(values, end - begin) for (begin, values), (end, _) in steps]
        return max(moved, default=since) - since, float(np.abs(np.sum(far, axis=0)).max())

    def wait(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Return whether something happened within so many seconds."""
        end = time.monotonic() + seconds
        while not happened() and time.monotonic() < end:
            time.sleep(0.005)
        return happened()

    def close(self) -> None:
        """Stop receiving values."""
        self._over = True
        self._thread.join()
        self._executor.shutdown()

    def _on_value(self, message: object) -> None:
        if hasattr(message, 'data'):
            values = tuple(message.data)
        else:
            linear, angular = message.twist.linear, message.twist.angular
            values = (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)
        self.log.append((time.monotonic(), values))

    def _spin(self) -> None:
        while not self._over:
            self._executor.spin_once(timeout_sec=0.1)


class Process:
    """A process of the suite with its standard output, ended by its process id."""

    def __init__(self, module: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-m', module, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(OMP_NUM_THREADS='1'),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """Return the output so far."""
        return '\n'.join(self.lines)

    @property
    def lives(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def signal(self, number: int) -> float:
        """Send a signal and return the time (s, CLOCK_MONOTONIC)."""
        self._process.send_signal(number)
        return time.monotonic()

    def wait(self, seconds: float) -> int:
        """Return its exit status. Raises subprocess.TimeoutExpired."""
        status = self._process.wait(seconds)
        self._reader.join(seconds)
        return status

    def close(self) -> None:
        """Kill the process if it is running, and wait for its end."""
        if self.lives:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(line.rstrip())


def watchdog_process(namespace: str, contract: str) -> Process:
    """Start a command watchdog."""
    words = ['--ros-args', '-p', f'contract:={contract}', '-r', f'__ns:={namespace}']
    return Process('embodied_kv.nodes.watchdog', *words)


def action_process(
    namespace: str, contract: str, speed: float, rate: float = 100.0, way: str = WATCHED
) -> Process:
    """Start an action node that moves an arm."""
    return Process(__spec__.name, namespace, contract, str(speed), str(rate), way)


class Mover(SuiteNode):
    """Moves the first velocity axis through the outputs of an action node."""

    on_engine = False

    def find_host(self) -> None:
        return None

    def setup(self) -> None:
        self.outputs = ArmOutputs(self, self.embodiment.outputs, qos.action(1.0), self.rate)
        (first, *_) = [output for output in self.embodiment.outputs if output.is_velocity]
        self._direct = first, self.publisher(KINDS[first.type], first.topic, qos.action(1.0))

    def send(self, velocity: float, way: str) -> None:
        """Send a set-point through the watchdog, or straight to the controller."""
        output, publisher = self._direct
        if way == DIRECT:
            values = [velocity] + [0.0] * (len(output.axes) - 1)
            now = self.get_clock().now().to_msg()
            publisher.publish(setpoint_message(output, values, now))
            return
        velocities = np.zeros(len(self.embodiment.axes))
        velocities[output.index[0]] = velocity
        self.outputs.setpoint(Setpoint(None, None, velocities, FRESH, 0.0))


def move(node: Mover, speed: float, way: str, stopping: Sequence[int]) -> None:
    """Accelerate, keep the velocity, and brake after a problem or when `stopping` is not empty.

    After a problem the arm stands until the process ends; before it has moved, it tries again.
    """
    velocity, moves, problem, period = 0.0, False, '', 1 / node.rate
    due = time.monotonic()
    while not stopping or velocity:
        found = node.outputs.problem() if way == WATCHED else ''
        if found and found != problem and moves:
            print(PROBLEM + found, flush=True)
        problem = found or (problem if moves else '')
        goal = 0.0 if problem or stopping else speed
        step = ACCELERATION * period
        velocity += math.copysign(min(step, abs(goal - velocity)), goal - velocity)
        node.send(velocity, way)
        if velocity == speed and not moves:
            moves = True
            print(MOVES, flush=True)
        due = max(due + period, time.monotonic() - period)
        time.sleep(max(0.0, due - time.monotonic()))
    node.send(0.0, way)


def main() -> None:
    """Run the action node until SIGTERM."""
    namespace, contract, speed, rate, way = sys.argv[1:]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    overrides = [Parameter('contract', value=contract)]
    node = Mover('action', namespace=namespace, parameter_overrides=overrides)
    node.rate = float(rate)
    node.trigger_configure()
    node.trigger_activate()
    move(node, float(speed), way, stopping)
    node.end()
    rclpy.try_shutdown()


if __name__ == '__main__':
    main()
