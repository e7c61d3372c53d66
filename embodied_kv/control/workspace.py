"""A box that the tip of an arm may not leave, whatever its joints may.

Knows a URDF and its forward kinematics, computed by MuJoCo. Does not know self-collision, nor any
part of the arm but the tip: this is a fence and no safety-rated device.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion

FINE = 0.005  # s between two looks at the tip
_SAME = 1e-9  # m


class Workspace:
    """Ends motions before the tip leaves the box.

    robot_description: a URDF. tip: a link of it. lower, upper: [3], m, in the frame of its root
    link. limits: whose joints are moved; others stay at 0, or where `fixed` says. Raises
    ValueError for a URDF that MuJoCo cannot read, a link or joint that it lacks, or an empty box.
    """

    def __init__(
        self,
        robot_description: str,
        tip: str,
        lower: ArrayLike,
        upper: ArrayLike,
        limits: Limits,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        import mujoco  # a second to import, and only who has a box needs it

        self._lower, self._upper = np.asarray(lower, float), np.asarray(upper, float)
        if self._lower.shape != (3,) or not (self._lower < self._upper).all():
            raise ValueError(f'the workspace {lower} to {upper} is no box: write x, y and z in m')
        try:
            self._model = mujoco.MjModel.from_xml_string(_skeleton(robot_description))
        except ValueError as error:
            raise ValueError(f'MuJoCo cannot read the robot_description: {error}') from error
        self._data, self._place = mujoco.MjData(self._model), mujoco.mj_kinematics
        self._limits = limits
        self._tip = self._find('body', tip)
        self._addresses = [self._address(name) for name in limits.joints]
        for name, position in (fixed or {}).items():
            self._data.qpos[self._address(name)] = position

    def tips(self, positions: np.ndarray) -> np.ndarray:
        """Where the tip is: m, [n, 3], of joint positions [n, joints]."""
        places = np.empty((len(positions), 3))
        for place, position in zip(places, positions, strict=True):
            self._data.qpos[self._addresses] = position
            self._place(self._model, self._data)
            place[:] = self._data.xpos[self._tip]
        return places

    def confine(self, motion: Motion) -> Motion | None:
        """The same, or as far as it may go before it must brake.

        None where braking at once would leave the box too. A tip that is outside already may come
        nearer to the box, or stay.
        """
        leaves = self._leaves(motion)
        if leaves is None:
            return motion
        for node in range(int(np.searchsorted(motion.times, leaves)) - 1, -1, -1):
            shorter = motion.until(node, self._limits)
            if self._leaves(shorter) is None:
                return shorter
        return None

    def _leaves(self, motion: Motion) -> float | None:
        """The first moment at which the tip is outside, and no nearer than before; None: none."""
        count = 1 + int(np.ceil(motion.duration / FINE))
        times = np.unique(np.append(motion.times, np.linspace(0, motion.duration, count)))
        tips = self.tips(motion.sample(times)[0])
        outside = np.maximum(np.maximum(tips - self._upper, self._lower - tips), 0.0)
        outside = np.linalg.norm(outside, axis=1)
        worse = np.flatnonzero(outside[1:] > np.maximum(outside[:-1], 0.0) + _SAME)
        return None if not len(worse) else float(times[worse[0] + 1])

    def _address(self, joint: str) -> int:
        return int(self._model.jnt_qposadr[self._find('joint', joint)])

    def _find(self, kind: str, name: str) -> int:
        try:
            return getattr(self._model, kind)(name).id
        except KeyError as error:
            raise ValueError(
                f'the robot_description has no {"link" if kind == "body" else kind} {name}'
            ) from error


def _skeleton(robot_description: str) -> str:
    """The URDF without shapes, and with a mass for every link: MuJoCo asks for one that moves."""
    try:
        root = ElementTree.fromstring(robot_description)
    except ElementTree.ParseError as error:
        raise ValueError(f'robot_description is no XML: {error}') from error
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
