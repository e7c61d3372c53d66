"""What can be selected of a pose, as numbers by name.

Knows the fields of geometry_msgs/PoseStamped, whoever made the object that has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def of_pose(message: Any) -> tuple[Sequence[str], Sequence[float], Sequence[float]]:
    """Position, orientation, and the turn as a vector, its length the angle in rad."""
    p, q = message.pose.position, message.pose.orientation
    told = {f'pose.position.{axis}': getattr(p, axis) for axis in 'xyz'}
    told |= {f'pose.orientation.{axis}': getattr(q, axis) for axis in 'xyzw'}
    sine = math.hypot(q.x, q.y, q.z)
    angle = 2 * math.atan2(sine, q.w)
    times = angle / sine if sine > 0 else 2.0
    told |= {f'axis_angle.{axis}': getattr(q, axis) * times for axis in 'xyz'}
    return tuple(told), tuple(told.values()), ()
