"""The node of the simulated robot: it publishes cameras and joints and executes trajectories.

The node also publishes the true state, for the demo; the suite does not subscribe to it. The node
has one thread: the simulation steps at absolute deadlines, and callbacks run between them.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import rclpy
from geometry_msgs.msg import PoseArray
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.demo.nodes.truth import held_message, objects_message
from embodied_kv.demo.sim.player import TrajectoryPlayer
from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tabletop import JOINTS, Tabletop
from embodied_kv.demo.sim.tasks import FAMILIES, task_scene
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.parameters import Parameters, param
from embodied_kv.nodes.common.process import leave
from embodied_kv.text import shown

MOST = 0.25  # s: longest simulated step; the rest of a longer pause is not simulated
REST = 0.4  # s after a reset in which trajectories are ignored: they are for the last scene


@dataclass(frozen=True)
class SimParams:
    """Parameters of the simulated robot."""

    seed: int = param(
        0, 'Seed of the first scene; a reset adds one', 'start', range=(0, 2**31 - 1)
    )
    rate: float = param(30.0, 'Images and joint states per second', 'start', range=(1.0, 200.0))
    image_size: int = param(64, 'Width and height of images, pixels', 'start', range=(8, 4096))
    publish_clock: bool = param(False, 'Publish /clock, for nodes with use_sim_time', 'start')
    family: str = param(
        'put',
        'Task family that is possible in every scene: reach, pick, put (all first four), push, '
        "take, next; '' for any",
        'start',
    )
    crowded: bool = param(
        False, 'Two receptacles in every scene, with one or two things in them', 'start'
    )
    truth: bool = param(True, 'Publish the true state (topics objects and held)', 'start')

    def __post_init__(self) -> None:
        if self.family not in ('', *FAMILIES):
            raise ValueError(
                f"parameter family must be {', '.join(FAMILIES)} or '' (got '{self.family}')"
            )


class Sim(Node):
    """A tabletop in real time.

    Publishes `camera/NAME/image`, `joint_states` and the true state (`objects`, `held`) of one
    moment with one stamp, and /clock if enabled. Executes `joint_trajectory`; stamp 0 means now.
    The service `sim/reset` starts a new scene, in which trajectories are ignored for REST.
    """

    def __init__(self, **arguments) -> None:
        super().__init__('sim', **arguments)
        params = Parameters(self, [('', SimParams)], lambda: True).read(SimParams)
        self.period = 1.0 / params.rate
        self.table = Tabletop(
            task_scene(params.family or None, params.crowded, image_size=params.image_size),
            params.seed,
        )
        self._player = TrajectoryPlayer(JOINTS, self.table.state())
        self._elapsed = 0.0  # s simulated since the start, across resets
        self._before = time.monotonic()  # time of the last step
        self._rest = 0.0  # s simulated until which trajectories are ignored

        self._images = {
            name: self.create_publisher(Image, f'camera/{name}/image', qos.SENSOR)
            for name in CAMERAS
        }
        self._joints = self.create_publisher(JointState, 'joint_states', 1)
        self._objects = self._held = None
        if params.truth:
            self._objects = self.create_publisher(PoseArray, 'objects', qos.JOINTS)
            self._held = self.create_publisher(Header, 'held', qos.JOINTS)
        self._sim_clock = (
            self.create_publisher(Clock, '/clock', 1) if params.publish_clock else None
        )
        self.create_subscription(JointTrajectory, 'joint_trajectory', self._on_trajectory, 1)
        self.create_service(Trigger, 'sim/reset', self._on_reset)
        self.get_logger().info(f'scene {params.seed}: {self._things()}')

    def spin(self, stopping: Sequence[object]) -> None:
        """Simulate in real time until `stopping` has an entry, then close the table."""
        executor = SingleThreadedExecutor(context=self.context)
        executor.add_node(self)
        self._before = deadline = time.monotonic()
        with self.table:
            while not stopping:
                now = time.monotonic()
                if now < deadline:
                    executor.spin_once(timeout_sec=deadline - now)
                    continue
                self._simulate(min(now - self._before, MOST))
                self._before = now
                self._publish()
                deadline += self.period * (1 + (now - deadline) // self.period)

    def _simulate(self, seconds: float) -> None:
        for _ in range(parts := max(1, round(seconds / SET_POINT))):
            self._elapsed += seconds / parts
            self.table.command(self._player.target(self._elapsed))
            self.table.step(seconds / parts)

    def _now(self) -> Time:
        """Return the simulated time if /clock is published, else the time of the node."""
        return Time(seconds=self._elapsed) if self._sim_clock else self.get_clock().now()

    def _publish(self) -> None:
        stamp = self._now().to_msg()
        if self._sim_clock:
            self._sim_clock.publish(Clock(clock=stamp))
        joints = JointState(name=JOINTS, position=self.table.state().tolist())
        joints.header.stamp = stamp
        self._joints.publish(joints)
        for name, image in self.table.render().items():
            self._images[name].publish(_image(image, stamp, f'camera_{name}'))
        if self._objects and self._held:
            self._objects.publish(objects_message(self.table, stamp))
            self._held.publish(held_message(self.table, stamp))

    def _on_trajectory(self, message: JointTrajectory) -> None:
        """Execute the trajectory from its stamp on, instead of the rest of the last one."""
        now, stamp = self._now().nanoseconds, Time.from_msg(message.header.stamp).nanoseconds
        present = self._elapsed + (0.0 if self._sim_clock else time.monotonic() - self._before)
        if present < self._rest:
            return  # of the last scene
        start = present + (stamp - now) / 1e9 if stamp else present
        try:
            points, times = _points(message)
            self._player.load(message.joint_names, points, start + times, present)
        except ValueError as error:
            line = f'trajectory rejected: {shown(error, 300)}'
            self.get_logger().warning(line, throttle_duration_sec=5.0)

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.table.reset()
        self._player = TrajectoryPlayer(JOINTS, self.table.state())
        self._rest = self._elapsed + REST
        response.success, response.message = True, f'scene {self.table.seed}: {self._things()}'
        self.get_logger().info(response.message)
        return response

    def _things(self) -> str:
        return ', '.join(thing.name for thing in self.table.objects())


def _image(pixels: np.ndarray, stamp, frame: str) -> Image:
    """Return an rgb8 message of uint8 [height, width, 3]."""
    height, width, _ = pixels.shape
    message = Image(height=height, width=width, encoding='rgb8', step=3 * width)
    message.header.stamp, message.header.frame_id = stamp, frame
    message.data = array(
        'B', pixels.tobytes()
    )  # the only type that rclpy does not check by element
    return message


def _points(message: JointTrajectory) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [n, joints], and s from the start [n]. Raises ValueError."""
    if any(len(point.positions) != len(message.joint_names) for point in message.points):
        raise ValueError(f'every point must have {len(message.joint_names)} positions')
    times = [Duration.from_msg(point.time_from_start).nanoseconds for point in message.points]
    return np.array([point.positions for point in message.points]), np.array(times) / 1e9


def main() -> None:
    """Run the executable `sim` until SIGINT or SIGTERM."""
    faulthandler.enable()  # a crash of native code prints where it happened
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopping.append(number))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        try:
            node = Sim()
        except (ValueError, RuntimeError) as error:  # a parameter, or no OpenGL
            sys.exit(f'sim: {error}')
        node.spin(stopping)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    leave(0)


if __name__ == '__main__':
    main()
