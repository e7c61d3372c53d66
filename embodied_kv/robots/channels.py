"""Message and action types that a contract may name, and the fields that it may select of each.

This module contains the names of fields. It does not import ROS; the nodes do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from embodied_kv.robots.units import POSITIONS, STEPS, VELOCITIES, is_velocity

IMAGE = 'sensor_msgs/msg/Image'
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
JOINT_STATE = 'sensor_msgs/msg/JointState'
POSE = 'geometry_msgs/msg/PoseStamped'
MULTI_ARRAY = 'std_msgs/msg/Float64MultiArray'
TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'
TWIST = 'geometry_msgs/msg/TwistStamped'
FOLLOW_TRAJECTORY = 'control_msgs/action/FollowJointTrajectory'
GRIPPER = 'control_msgs/action/GripperCommand'
PARALLEL_GRIPPER = 'control_msgs/action/ParallelGripperCommand'

GRIPPERS = (GRIPPER, PARALLEL_GRIPPER)  # a goal is one position
GOALS = (FOLLOW_TRAJECTORY, *GRIPPERS)  # actions: `topic` is the name of the action

# What `select` may contain for each type: a pattern, and its form for messages.
_JOINT = (r'position\.\S+', 'position.JOINT')
_MOVING_JOINT = (r'(position|velocity)\.\S+', 'position.JOINT or velocity.JOINT')
OBSERVED = {
    JOINT_STATE: _MOVING_JOINT,
    POSE: (
        r'pose\.position\.[xyz]|axis_angle\.[xyz]|pose\.orientation\.[xyzw]',
        'pose.position.x, pose.orientation.x or axis_angle.x',
    ),
}
COMMANDED = {
    TRAJECTORY: _JOINT,
    MULTI_ARRAY: (_MOVING_JOINT[0], 'position.NAME or velocity.NAME'),
    TWIST: (r'twist\.(linear|angular)\.[xyz]', 'twist.linear.x … twist.angular.z'),
    JOINT_STATE: _JOINT,
    **dict.fromkeys(GOALS, _JOINT),
}


def check_selection(
    type_: str, select: Sequence[str], unit: str, allowed: Mapping[str, tuple[str, str]]
) -> None:
    """Check that a type, its selection and a unit match. Raises ValueError.

    allowed: OBSERVED or COMMANDED.
    """
    if type_ not in allowed:
        raise ValueError(f'channel.type must be one of {", ".join(allowed)} (got {type_})')
    pattern, shown = allowed[type_]
    for selection in select:
        if not re.fullmatch(pattern, selection):
            raise ValueError(f'select must be {shown} for {type_} (got {selection})')
        if selects_velocity(selection) != is_velocity(unit):
            kind, units = 'position', POSITIONS
            if selects_velocity(selection):
                kind, units = 'velocity', VELOCITIES | STEPS
            raise ValueError(
                f'unit of {selection} must be that of a {kind}: {", ".join(units)} (got {unit})'
            )


def selects_velocity(selection: str) -> bool:
    """Return whether a selection is a velocity."""
    return selection.startswith(('velocity.', 'twist.'))


def pose_values(message: Any) -> tuple[Sequence[str], Sequence[float], Sequence[float]]:
    """Return the names and values that can be selected of a PoseStamped, and no velocities.

    The values are the position, the orientation, and the rotation vector (rad).
    """
    p, q = message.pose.position, message.pose.orientation
    values = {f'pose.position.{axis}': getattr(p, axis) for axis in 'xyz'}
    values |= {f'pose.orientation.{axis}': getattr(q, axis) for axis in 'xyzw'}
    sine = math.hypot(q.x, q.y, q.z)
    angle = 2 * math.atan2(sine, q.w)
    factor = angle / sine if sine > 0 else 2.0
    values |= {f'axis_angle.{axis}': getattr(q, axis) * factor for axis in 'xyz'}
    return tuple(values), tuple(values.values()), ()
