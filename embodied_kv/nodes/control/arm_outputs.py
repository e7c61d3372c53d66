"""A robot's controllers, each on its topic: what a command or a set-point is to them.

Knows messages. Does not know when anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geometry_msgs.msg import TwistStamped
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.control.command import Command, Setpoint
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.robots.channels import MULTI_ARRAY, TRAJECTORY, TWIST
from embodied_kv.robots.outputs import Output

KINDS = {TRAJECTORY: JointTrajectory, MULTI_ARRAY: Float64MultiArray, TWIST: TwistStamped}


@dataclass(frozen=True)
class _Controller:
    output: Output
    publisher: Publisher


class ArmOutputs:
    """Publishers of a node, one for each output of the robot, until the node's cleanup."""

    def __init__(self, node: SuiteNode, outputs: Sequence[Output], profile: QoSProfile) -> None:
        self._node = node
        made = [_Controller(o, node.publisher(KINDS[o.type], o.topic, profile)) for o in outputs]
        self._trajectories = [c for c in made if c.output.type == TRAJECTORY]
        self._followers = [c for c in made if c.output.type != TRAJECTORY]

    @property
    def follow_setpoints(self) -> bool:
        """Whether some controller is told moment by moment."""
        return bool(self._followers)

    def command(self, command: Command) -> None:
        """A motion, to those that execute trajectories; nothing where it goes on as it was."""
        if not len(command.points):
            return
        for controller in self._trajectories:
            output = controller.output
            index = list(output.index)
            controller.publisher.publish(
                conversions.trajectory_message(
                    command.points[:, index],
                    command.velocities[:, index],
                    command.times,
                    output.axes,
                )
            )

    def setpoint(self, setpoint: Setpoint) -> None:
        """A moment, to those that are told each."""
        for controller in self._followers:
            output = controller.output
            values = [float(setpoint.values[place]) for place in output.index]
            if output.type == MULTI_ARRAY:
                message = conversions.setpoint_message(values)
            else:
                message = conversions.twist_message(
                    dict(zip(output.axes, values, strict=True)),
                    output.frame,
                    self._node.get_clock().now().to_msg(),
                )
            controller.publisher.publish(message)
