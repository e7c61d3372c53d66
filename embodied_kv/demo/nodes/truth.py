"""Conversion of the simulator's true state to messages and back.

Messages have poses in the frame `scene_SEED`. Names, shapes and sizes follow from the seed and the
ranges of the scenes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Pose, PoseArray, Quaternion
from sensor_msgs.msg import JointState
from std_msgs.msg import Header

from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.scene import SceneConfig, Thing, draw_scene
from embodied_kv.demo.sim.tabletop import ObjectTruth, Tabletop, Truth
from embodied_kv.nodes.common.conversions import nanoseconds

FRAME = 'scene_'  # then the seed
KEPT = 30  # incomplete stamps
PARTS = {'joints', 'objects', 'held'}


@dataclass(frozen=True, eq=False)
class TrueMoment:
    """The true state at a stamp (ns), which is also that of the images.

    scene: its seed. joints: float64 [7], rad and m. poses: float64 [things, 7], `Tabletop.poses`.
    """

    stamp: int
    scene: int
    joints: np.ndarray
    truth: Truth
    poses: np.ndarray

    def show_on(self, table: Tabletop) -> None:
        """Restore the moment on a table. Raises ValueError if its scenes have other ranges."""
        if table.seed != self.scene:
            table.reset(self.scene)
        table.restore(self.joints, self.poses)


def objects_message(table: Tabletop, stamp: Time) -> PoseArray:
    """Return the pose of every thing, in the order of the scene."""
    message = PoseArray(header=Header(stamp=stamp, frame_id=f'{FRAME}{table.seed}'))
    for x, y, z, *(w, i, j, k) in table.poses().tolist():
        turned = Quaternion(w=w, x=i, y=j, z=k)
        message.poses.append(Pose(position=Point(x=x, y=y, z=z), orientation=turned))
    return message


def held_message(table: Tabletop, stamp: Time) -> Header:
    """Return the name of the held thing, or '', in a header, because a string has no stamp."""
    return Header(stamp=stamp, frame_id=table.held())


class TrueMoments:
    """Combines the messages of one stamp. config: the ranges of the scenes."""

    def __init__(self, config: SceneConfig) -> None:
        self._parts: dict[int, dict[str, JointState | PoseArray | Header]] = {}
        self._things = lru_cache(8)(
            lambda seed: draw_scene(config, np.random.default_rng(seed)).things
        )

    def add(self, part: str, message: JointState | PoseArray | Header) -> TrueMoment | None:
        """Take one of PARTS; return the moment if it was the last of its stamp.

        Raises ValueError where the poses do not fit the scene that they name.
        """
        stamp = nanoseconds(message.stamp if part == 'held' else message.header.stamp)
        self._parts.setdefault(stamp, {})[part] = message
        if self._parts[stamp].keys() == PARTS:
            return self._moment(stamp, **self._parts.pop(stamp))
        while len(self._parts) > KEPT:
            del self._parts[next(iter(self._parts))]
        return None

    def _moment(
        self, stamp: int, joints: JointState, objects: PoseArray, held: Header
    ) -> TrueMoment:
        frame = objects.header.frame_id
        if not frame.removeprefix(FRAME).isdigit():
            raise ValueError(f"frame of objects must be {FRAME}SEED (got '{frame}')")
        seed = int(frame.removeprefix(FRAME))
        things = self._things(seed)
        if len(things) != len(objects.poses):
            raise ValueError(
                f'scene {seed} must have {len(things)} poses (got {len(objects.poses)}); use the '
                'same ranges in the simulator (parameter family)'
            )
        state = np.array(joints.position)
        poses = np.array([_numbers(pose) for pose in objects.poses])
        truth = Truth(tuple(map(_lying, things, poses)), forward(state[None])[0], held.frame_id)
        return TrueMoment(stamp, seed, state, truth, poses)


def _numbers(pose: Pose) -> tuple[float, ...]:
    at, turned = pose.position, pose.orientation
    return at.x, at.y, at.z, turned.w, turned.x, turned.y, turned.z


def _lying(thing: Thing, pose: np.ndarray) -> ObjectTruth:
    """Return a thing at its pose; the yaw is that of its x axis, also if it has toppled."""
    w, x, y, z = pose[3:]
    yaw = float(np.arctan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z)))
    return ObjectTruth(thing.name, thing.shape, thing.colour, pose[:3], yaw, np.array(thing.size))
