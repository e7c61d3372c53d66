"""Messages of set-point controllers, and the topics of the command watchdog.

The module must not import torch, so that the command watchdog starts within a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from builtin_interfaces.msg import Time
from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.robots.channels import GRIPPERS, JOINT_STATE, MULTI_ARRAY, TRAJECTORY, TWIST
from embodied_kv.robots.mapping import Output

# Topics between the action node and the command watchdog.
SETPOINT, STATE = 'command_watchdog/setpoint', 'command_watchdog/state'
KINDS = {
    TRAJECTORY: JointTrajectory,
    MULTI_ARRAY: Float64MultiArray,
    TWIST: TwistStamped,
    JOINT_STATE: JointState,
}


def setpoint_message(
    output: Output, values: Sequence[float], now: Time
) -> Float64MultiArray | TwistStamped | JointState:
    """Return a set-point as the message of its controller; a gripper takes a JointState too.

    Args:
        output: The controller; it takes no trajectories.
        values: One for each axis of the output. Axes that a twist does not name are 0.
        now: The ROS time, for the header.
    """
    if output.type == JOINT_STATE or output.type in GRIPPERS:
        message = JointState(name=list(output.axes), position=array('d', values))
        message.header.stamp = now
        return message
    if output.type == MULTI_ARRAY:
        return Float64MultiArray(data=array('d', values))
    message = TwistStamped()
    message.header.frame_id, message.header.stamp = output.frame, now
    for axis, value in zip(output.axes, values, strict=True):
        _, part, component = axis.split('.')
        setattr(getattr(message.twist, part), component, value)
    return message
