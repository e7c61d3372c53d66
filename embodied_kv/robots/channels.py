"""Message types that a contract may name, and what can be selected of each.

Knows the fields of the messages by name. Does not know ROS: the nodes do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from embodied_kv.robots.units import POSITIONS, is_velocity

IMAGE = 'sensor_msgs/msg/Image'
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
JOINT_STATE = 'sensor_msgs/msg/JointState'
POSE = 'geometry_msgs/msg/PoseStamped'
MULTI_ARRAY = 'std_msgs/msg/Float64MultiArray'
TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'
TWIST = 'geometry_msgs/msg/TwistStamped'

# What may stand in `select`, and how it is said to the user.
SELECTABLE = {
    JOINT_STATE: (r'(position|velocity)\.\S+', 'position.JOINT or velocity.JOINT'),
    POSE: (
        r'pose\.position\.[xyz]|axis_angle\.[xyz]|pose\.orientation\.[xyzw]',
        'pose.position.x, pose.orientation.x or axis_angle.x',
    ),
    MULTI_ARRAY: (r'(position|velocity)\.\S+', 'position.NAME or velocity.NAME'),
    TRAJECTORY: (r'position\.\S+', 'position.JOINT'),
    TWIST: (r'twist\.(linear|angular)\.[xyz]', 'twist.linear.x … twist.angular.z'),
}
OBSERVED = (JOINT_STATE, POSE)


def check_selection(
    type_: str, select: Sequence[str], unit: str, allowed: Collection[str]
) -> None:
    """Raises ValueError for a message type, a selection or a unit that do not go together."""
    if type_ not in allowed:
        raise ValueError(f'channel.type {type_}: there are {", ".join(allowed)}')
    pattern, shown = SELECTABLE[type_]
    for selection in select:
        if not re.fullmatch(pattern, selection):
            raise ValueError(f'select {selection}: of {type_} there is {shown}')
        if selects_velocity(selection) != is_velocity(unit):
            wanted = 'a velocity' if selects_velocity(selection) else 'a position'
            raise ValueError(
                f'unit {unit}: {selection} is {wanted}'
                + ('' if selects_velocity(selection) else f' ({", ".join(POSITIONS)})')
            )


def selects_velocity(selection: str) -> bool:
    """Whether it is a change in time."""
    return selection.startswith(('velocity.', 'twist.'))
