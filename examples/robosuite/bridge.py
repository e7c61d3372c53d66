"""Connect robosuite's Lift to ROS as a robot: images and joint states out, trajectories in.

Run it while a suite with the contract runs: `tools/env python examples/robosuite/bridge.py`. With
`--starts N` it measures success: from each of N starts it publishes the instruction, waits until
the cube is lifted or the time is over, stops the arm and resets it. No start begins before the arm
is armed: call `control/arm` once.

ROS and robosuite need different versions of NumPy, so the world is a separate process
(`world.py`). Commands are interpolated like in a joint_trajectory_controller, at the world's 20
steps per second.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import link
import numpy as np
import rclpy
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.demo.sim.player import TrajectoryPlayer
from embodied_kv.msg import ControlState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import RCLError
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Output

from remote import World

INSTRUCTION = 'lift the red cube'
UNSEEN = 1_000_000  # seed of starts that are in no recording
SECONDS, REST = 10.0, 1.5  # s: an episode at most; time until a stopped arm rests


class Bridge(Node):
    """Publishes the observations of the world, and steps it with the latest commands."""

    def __init__(self, world: World, robot: Embodiment, seed: int) -> None:
        super().__init__('lift')
        self._world, self._robot = world, robot
        self.steps, self.late = 0, 0
        self._pictures = {
            view: self.create_publisher(Image, v.channel.topic, qos.SENSOR)
            for view, v in robot.contract.views.items()
        }
        self._joints = self.create_publisher(JointState, 'joint_states', 1)
        self._instruction = self.create_publisher(String, 'instruction', qos.INSTRUCTION)
        self.is_armed = False
        self.create_subscription(ControlState, 'control/state', self._on_state, qos.STATUS)
        for output in robot.outputs:
            heard = partial(self._heard, output)
            self.create_subscription(JointTrajectory, output.topic, heard, 1)
        self.reset(seed)

    @property
    def now(self) -> float:
        """Simulated time (s), which a reset does not change."""
        return self.steps * self._robot.contract.dt

    def reset(self, seed: int) -> None:
        """Reset to a start; the arm rests until it receives a command."""
        self._seen = self._world.reset(seed)
        told = self._seen['joints']
        self._players = {
            output.topic: TrajectoryPlayer(output.axes, told[list(output.index)])
            for output in self._robot.outputs
        }

    def tell(self, instruction: str) -> None:
        """Publish an instruction; '' stops the arm."""
        self._instruction.publish(String(data=instruction))

    def step(self) -> bool:
        """Take one period and publish its observation. Returns whether the cube is lifted."""
        self.steps += 1
        told = np.zeros(len(self._robot.axes))
        for output in self._robot.outputs:
            told[list(output.index)] = self._players[output.topic].target(self.now)
        self._seen = self._world.step(told)
        self._publish()
        return self._seen['done']

    def _on_state(self, message: ControlState) -> None:
        self.is_armed = message.state == ControlState.ARMED

    def _heard(self, output: Output, message: JointTrajectory) -> None:
        """Replace what is left of an output's trajectory."""
        times = [Duration.from_msg(point.time_from_start).nanoseconds for point in message.points]
        points = [point.positions for point in message.points]
        try:
            self._players[output.topic].load(
                message.joint_names, points, self.now + np.array(times) / 1e9, self.now
            )
        except ValueError as error:
            self.get_logger().warning(
                f'{output.topic} is refused: {error}', throttle_duration_sec=5.0
            )

    def _publish(self) -> None:
        stamp, seen = self.get_clock().now().to_msg(), self._seen
        joints = JointState(name=list(self._robot.joints))
        joints.position = seen['joints'].tolist()
        joints.header.stamp = stamp
        self._joints.publish(joints)
        for view, pixels in seen['pictures'].items():
            rows, columns, _ = pixels.shape
            picture = Image(height=rows, width=columns, encoding='rgb8', step=3 * columns)
            picture.header.stamp, picture.data = stamp, pixels.tobytes()
            self._pictures[view].publish(picture)


class Clockwork:
    """Runs a bridge at the world's rate, in real time.

    Raises ExternalShutdownException if the context is shut down.
    """

    def __init__(self, bridge: Bridge, period: float) -> None:
        self._bridge, self._period = bridge, period
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(bridge)
        self._due = time.monotonic()

    def run(self, seconds: float) -> None:
        """Run for `seconds` of simulated time."""
        end = self._bridge.now + seconds
        while self._bridge.now < end:
            self._step()

    def wait(self) -> None:
        """Run until the arm is armed; print a message if it is not."""
        self.run(REST)  # receives its state
        if not self._bridge.is_armed:
            print('waiting until the arm is armed: control/arm', flush=True)
        while not self._bridge.is_armed:
            self._step()

    def lifts(self, seconds: float) -> float:
        """Run until the cube is lifted, for `seconds` at most.

        Returns the simulated duration (s), 0 if it is not lifted.
        """
        begin = self._bridge.now
        while self._bridge.now - begin < seconds:
            if self._step():
                return self._bridge.now - begin
        return 0.0

    def _step(self) -> bool:
        if not rclpy.ok():
            raise ExternalShutdownException
        for _ in self._bridge.subscriptions:  # process messages also if a step is late
            self._executor.spin_once(timeout_sec=0)
        while (left := self._due - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)
        self._bridge.late += left < -self._period
        self._due = max(self._due, time.monotonic() - self._period) + self._period
        return self._bridge.step()


def judge(bridge: Bridge, clockwork: Clockwork, starts: int, seed: int) -> None:
    """Print from how many starts the suite lifts the cube; an interrupted start does not count."""
    took = []
    try:
        for start in range(seed, seed + starts):
            bridge.tell('')
            clockwork.wait()
            bridge.reset(start)
            clockwork.run(REST)
            bridge.tell(INSTRUCTION)
            took.append(clockwork.lifts(SECONDS))
            said = f'lifted in {took[-1]:.1f} s' if took[-1] else 'not lifted'
            print(f'start {start}: {said}', flush=True)
        bridge.tell('')
        clockwork.run(REST)
    finally:
        lifted = sum(seconds > 0 for seconds in took)
        print(f'lifted from {lifted} of {len(took)} starts; {bridge.late} steps began late')


def main() -> None:
    """Parse the command line and run the bridge."""
    parser = argparse.ArgumentParser(prog='bridge', description=__doc__.splitlines()[0])
    parser.add_argument('--starts', type=int, default=0, help='to judge; 0: run until Ctrl-C')
    parser.add_argument('--seed', type=int, default=UNSEEN, help='of the first start')
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    told, ros = parser.parse_known_args()
    robot = link.ROBOT
    try:
        with link.world(told.size) as world:
            rclpy.init(args=ros)
            bridge = Bridge(world, robot, told.seed)
            clockwork = Clockwork(bridge, robot.contract.dt)
            if told.starts:
                judge(bridge, clockwork, told.starts, told.seed)
            else:
                clockwork.run(float('inf'))
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except RCLError:
        if rclpy.ok():  # else it was shut down while it published
            raise
    except RuntimeError as error:
        parser.exit(1, f'{error}\n')
    finally:
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
