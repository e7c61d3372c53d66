"""The forward kinematics of a URDF: where a link is, for given positions of the joints.

The module knows URDFs; MuJoCo computes. It does not know limits, messages or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

_XYZW = [4, 5, 6, 3]  # of a place and MuJoCo's quaternion wxyz


class Kinematics:
    """Computes places and orientations of a link, in the frame of the root link.

    Args:
        robot_description: A URDF.
        link: The name of the link.
        joints: Names of the joints that are moved; the others stay at 0.
        fixed: Positions (rad or m) of other joints, by name.

    Raises:
        ValueError: MuJoCo is missing or cannot read the URDF, or the URDF lacks the link or a
            joint.
    """

    def __init__(
        self,
        robot_description: str,
        link: str,
        joints: Sequence[str],
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        try:
            import mujoco  # takes a second, and few robots need it
        except ImportError as error:
            raise ValueError(
                'the Python package mujoco must be installed for the kinematics of a URDF '
                f'(got {error}); run pip install mujoco'
            ) from error
        try:
            self._model = mujoco.MjModel.from_xml_string(_skeleton(robot_description))
        except ValueError as error:
            raise ValueError(f'MuJoCo cannot read the robot_description: {error}') from error
        self._data, self._compute = mujoco.MjData(self._model), mujoco.mj_kinematics
        self._link = self._find('body', link)
        self._addresses = [self._address(name) for name in joints]
        for name, position in (fixed or {}).items():
            self._data.qpos[self._address(name)] = position

    def places(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places (m) [n, 3] of the link for joint positions [n, joints]."""
        return self.poses(positions)[0]

    def poses(
        self, positions: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return places (m) [n, 3] and orientations (quaternions xyzw) [n, 4] of the link.

        Args:
            positions: Joint positions (rad or m) [n, joints], in the order of `joints`.
        """
        poses = np.empty((len(positions), 7))
        for pose, position in zip(poses, positions, strict=True):
            self._data.qpos[self._addresses] = position
            self._compute(self._model, self._data)
            pose[:3], pose[3:] = self._data.xpos[self._link], self._data.xquat[self._link]
        return poses[:, :3], poses[:, _XYZW]

    def _address(self, joint: str) -> int:
        return int(self._model.jnt_qposadr[self._find('joint', joint)])

    def _find(self, kind: str, name: str) -> int:
        try:
            return getattr(self._model, kind)(name).id
        except KeyError as error:
            raise ValueError(
                f'the robot_description has no {"link" if kind == "body" else kind} {name}'
            ) from error


def links(robot_description: str) -> list[str]:
    """Return the names of the links of a URDF. Raises ValueError if it is no XML."""
    return [link.get('name', '') for link in _parsed(robot_description).findall('link')]


def chain(robot_description: str, link: str) -> tuple[str, tuple[str, ...]]:
    """Return the root link above a link, and the joints between them that can move.

    Args:
        robot_description: A URDF.
        link: The name of one of its links.

    Raises:
        ValueError: The URDF is no XML, or one of its joints has no parent or no child.
    """
    above = {}
    for joint in _parsed(robot_description).findall('joint'):
        ends = joint.find('parent'), joint.find('child')
        if None in ends:
            raise ValueError(f'joint {joint.get("name")} of the URDF has no parent or no child')
        parent, child = (end.get('link') for end in ends)
        above[child] = joint.get('name', ''), joint.get('type'), parent
    joints = []
    while link in above:
        joint, kind, link = above.pop(link)
        if kind != 'fixed':
            joints.append(joint)
    return link, tuple(reversed(joints))


def _parsed(robot_description: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(robot_description)
    except ElementTree.ParseError as error:
        raise ValueError(f'robot_description is no XML: {error}') from error


def _skeleton(robot_description: str) -> str:
    """Return the URDF without shapes, and with a mass for every link, which MuJoCo demands."""
    root = _parsed(robot_description)
    for link in root.iter('link'):
        for part in ('visual', 'collision', 'inertial'):
            for element in link.findall(part):
                link.remove(element)
        inertial = ElementTree.SubElement(link, 'inertial')
        ElementTree.SubElement(inertial, 'mass', value='1')
        each = dict(ixx='1', iyy='1', izz='1', ixy='0', ixz='0', iyz='0')
        ElementTree.SubElement(inertial, 'inertia', each)
    for extra in root.findall('mujoco') + root.findall('gazebo') + root.findall('transmission'):
        root.remove(extra)
    settings = ElementTree.SubElement(root, 'mujoco')
    # Fixed joints stay, so that their links keep their names.
    ElementTree.SubElement(settings, 'compiler', fusestatic='false')
    return ElementTree.tostring(root, encoding='unicode')
