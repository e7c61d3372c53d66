"""What an observation consists of: cameras and joints, as a robot's description names them.

Plain data. Knows names, topics and how a picture is cut and turned. Does not know ROS, nor where
a description comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.robots.channels import JOINT_STATE
from embodied_kv.robots.framing import framed

ROTATIONS = (0, 90, 180, 270)


@dataclass(frozen=True)
class ViewInput:
    """One view of the model, and the camera that shows it.

    topic: of sensor_msgs/Image; of sensor_msgs/CompressedImage where it is `compressed`. required:
    without this view there is no observation; without another one it goes on. crop: (left, top,
    width, height) in pixels of the camera. rotate: degrees clockwise, as LeRobot counts them,
    after cropping.

    Raises ValueError for a crop or a rotation that is none.
    """

    name: str
    topic: str
    compressed: bool = False
    required: bool = True
    crop: tuple[int, int, int, int] | None = None
    rotate: int = 0

    def __post_init__(self) -> None:
        if self.rotate not in ROTATIONS:
            raise ValueError(f'view {self.name}: rotate is {self.rotate}, not one of {ROTATIONS}')
        if self.crop is not None:
            left, top, width, height = self.crop
            if min(left, top) < 0 or min(width, height) < 1:
                raise ValueError(
                    f'view {self.name}: crop {self.crop} is not (left, top, width, height) in '
                    'pixels'
                )

    def framed(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Of a camera's [height, width, 3] the part that the model sees, upright; no copy.

        Raises ValueError where the crop does not lie in the picture.
        """
        return framed(pixels, self.crop, self.rotate)


@dataclass(frozen=True)
class JointInput:
    """A topic, and what is taken from it.

    joints: names of a JointState; of another type what `joint_states.READERS` calls its numbers.
    """

    topic: str
    joints: tuple[str, ...]
    type: str = JOINT_STATE


@dataclass(frozen=True)
class InputDescription:
    """All that is observed. The state has the joints in the order in which they are named here.

    Raises ValueError where there is no view, or a name comes twice.
    """

    views: tuple[ViewInput, ...]
    joints: tuple[JointInput, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError('no view is described: a frame needs at least one camera')
        names = (view.name for view in self.views)
        for kind, named in (('view', tuple(names)), ('joint', self.joint_names)):
            if twice := [name for name in named if named.count(name) > 1]:
                raise ValueError(f'{kind} {twice[0]} is described twice')

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Of all topics."""
        return tuple(name for joint in self.joints for name in joint.joints)
