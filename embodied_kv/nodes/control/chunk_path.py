"""Publish the predicted path of one link during a chunk, for RViz and Foxglove.

The control loop hands commands over and never waits: the thread that serves the node computes and
publishes the path.
"""

from __future__ import annotations

import numpy as np
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Path
from numpy.typing import NDArray
from std_msgs.msg import Header

from embodied_kv.control.command import FRESH, PREVIOUS, Command
from embodied_kv.control.kinematics import Kinematics, chain, links
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.text import listed

TOPIC = 'predicted_path'
PERIOD = 0.1  # minimum time (s) between two paths


class ChunkPath:
    """Publishes a path once for each chunk, and an empty one when the arm holds or stops.

    Args:
        node: The action node, which is being configured.
        tool_frame: The link of the URDF whose path is published.
        robot_description: The URDF; '' without one.

    Raises:
        ValueError: There is no URDF, or it has no such link, or a joint above the link is not
            commanded by position.
    """

    def __init__(self, node: SuiteNode, tool_frame: str, robot_description: str) -> None:
        self.frame, joints = _chain(tool_frame, robot_description)
        commanded = {
            d.axis: column
            for column, d in enumerate(node.embodiment.actions.dimensions)
            if not d.is_velocity
        }
        if missing := [joint for joint in joints if joint not in commanded]:
            raise ValueError(
                'tool_frame must be a link whose joints are all commanded by position (got '
                f'{tool_frame}, which {listed(missing)} moves); choose another link, or leave '
                'tool_frame empty'
            )
        self._columns = [commanded[joint] for joint in joints]
        self._kinematics = Kinematics(robot_description, tool_frame, joints)
        self._command: Command | None = None  # the chunk that is executed
        self._shown: NDArray[np.float64] | None = None  # values of the chunk that was published
        self._publisher = node.publisher(Path, TOPIC, qos.HANDLE)
        node.every(PERIOD, self.show)

    def see(self, command: Command) -> None:
        """Note the newest command; called on the thread of the control loop."""
        self._command = command if command.source in (FRESH, PREVIOUS) else None

    def show(self) -> None:
        """Publish the path of the newest chunk, unless it was published already."""
        command = self._command
        values = None if command is None else command.values
        if values is not self._shown:
            self._shown = values
            self._publisher.publish(self.message(command))

    def message(self, command: Command | None) -> Path:
        """Return the poses of the link during the actions to execute; none without a command."""
        header = Header(frame_id=self.frame)
        if command is None or command.stamp is None:
            return Path(header=header)
        header.stamp = conversions.stamp(command.stamp)
        actions = command.values[command.first : command.execution_horizon, self._columns]
        poses = zip(*self._kinematics.poses(actions), strict=True)
        return Path(
            header=header, poses=[PoseStamped(header=header, pose=_pose(*p)) for p in poses]
        )


def _chain(tool_frame: str, robot_description: str) -> tuple[str, tuple[str, ...]]:
    """Return the root link, and the joints from it to `tool_frame`. Raises ValueError."""
    if not robot_description:
        raise ValueError(
            "robot_description must be a URDF where tool_frame is set (got ''); set the parameter "
            'robot_description, publish it on the topic of that name, or leave tool_frame empty'
        )
    if tool_frame not in (known := links(robot_description)):
        raise ValueError(
            f'tool_frame must be a link of the URDF (got {tool_frame}); write one of '
            f'{listed(known)}'
        )
    return chain(robot_description, tool_frame)


def _pose(place: NDArray[np.float64], orientation: NDArray[np.float64]) -> Pose:
    """Return a position (m) [3] and an orientation (quaternion xyzw) [4] as a message."""
    x, y, z = place.tolist()
    qx, qy, qz, qw = orientation.tolist()
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))
