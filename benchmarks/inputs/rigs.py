"""Cameras and joints that are measured, and the settings of their middleware.

Plain data: two processes receive it, as JSON and in their environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ament_index_python.packages import get_package_share_directory

WIDTH, HEIGHT = 640, 480
TOPICS = 'joint_states', 'gripper/joint_states'
ARM, HAND = tuple(f'joint_{i}' for i in range(6)), ('finger',)


@dataclass(frozen=True)
class Camera:
    """A camera.

    rate: Hz. phase: s by which its images are later. latency: s from an image to its message.
    """

    name: str
    rate: float = 30.0
    phase: float = 0.0
    latency: float = 0.005
    compressed: bool = False

    @property
    def topic(self) -> str:
        return f'camera/{self.name}/' + ('compressed' if self.compressed else 'image')


@dataclass(frozen=True)
class Rig:
    """Cameras and joints.

    joint_rate: joint states of the arm a second, Hz; the gripper publishes a tenth of that.
    """

    cameras: tuple[Camera, ...]
    joint_rate: float = 500.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Rig:
        fields = json.loads(text)
        cameras = tuple(Camera(**camera) for camera in fields.pop('cameras'))
        return cls(cameras, **fields)


RIGS = {
    'two 30 Hz cameras': Rig((Camera('front'), Camera('wrist'))),
    'one 50 ms late': Rig((Camera('front'), Camera('wrist', latency=0.055))),
    'two 15 Hz in antiphase': Rig((Camera('front', 15.0), Camera('wrist', 15.0, phase=1 / 30))),
    '30 Hz and 10 Hz': Rig((Camera('front'), Camera('wrist', 10.0, phase=0.01))),
    'compressed': Rig((Camera('front', compressed=True), Camera('wrist', compressed=True))),
}


def roomy() -> dict[str, str]:
    """Return variables that give Fast DDS, older or newer, room for images; others ignore them."""
    path = Path(get_package_share_directory('embodied_kv')) / 'config' / 'fastdds.xml'
    names = 'FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE'
    return dict.fromkeys(names, str(path))
