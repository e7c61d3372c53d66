"""Compute the forward kinematics of a URDF: the pose of a link for given joint positions."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

_ONE = np.array([0.0, 0.0, 0.0, 1.0])  # quaternion xyzw
TURNS, SLIDES, FIXED = ('revolute', 'continuous'), ('prismatic',), ('fixed',)


@dataclass(frozen=True)
class _Joint:
    """One joint of a chain.

    Args:
        place: Its origin (m) [3] in the frame of the parent link.
        turn: The orientation of its origin, a quaternion xyzw [4].
        axis: Its axis [3], of length 1, in its own frame.
    """

    name: str
    kind: str
    place: NDArray[np.float64]
    turn: NDArray[np.float64]
    axis: NDArray[np.float64]


@dataclass(frozen=True)
class _Drive:
    """The source of a joint's position: multiplier * (position of `joint`) + offset."""

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0


class Kinematics:
    """Forward kinematics of a link, in the frame of the root link.

    Args:
        robot_description: A URDF.
        link: The name of the link.
        joints: Names of the joints that are moved; the others stay at 0.
        fixed: Positions (rad or m) of other joints, by name.

    A joint that mimics another one follows it, unless it is in `joints` or `fixed` or
    ros2_control declares it independent (`mimic="false"`).

    Raises:
        ValueError: The URDF is not XML or not a tree, or lacks the link or a joint. Or a joint
            between the root and the link is neither fixed nor revolute, continuous or prismatic,
            or its mimic names no joint.
    """

    def __init__(
        self,
        robot_description: str,
        link: str,
        joints: Sequence[str],
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        root = _parsed(robot_description)
        if link not in {one.get('name') for one in root.findall('link')}:
            raise ValueError(f'link must be in the robot_description (got {link})')
        known = {one.get('name') for one in root.findall('joint')}
        for name in (*joints, *(fixed or {})):
            if name not in known:
                raise ValueError(f'joint must be in the robot_description (got {name})')
        self._columns = {name: column for column, name in enumerate(joints)}
        self._fixed = dict(fixed or {})
        own = self._columns.keys() | self._fixed.keys()
        chain = [_joint(element) for element in _above(root, link)[1]]
        self._chain = [(joint, _drive(root, joint.name, own)) for joint in chain]

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
        place = np.zeros((len(positions), 3))
        turn = np.tile(_ONE, (len(positions), 1))
        for joint, drive in self._chain:
            place = place + _rotate(turn, joint.place)
            turn = _multiply(turn, joint.turn)
            if joint.kind in FIXED:
                continue
            if (column := self._columns.get(drive.joint)) is not None:
                at = positions[:, column]
            else:
                at = np.full(len(positions), self._fixed.get(drive.joint, 0.0))
            at = (drive.multiplier * at + drive.offset)[:, None]  # [n, 1]
            if joint.kind in SLIDES:
                place = place + _rotate(turn, joint.axis * at)
            else:
                half = at / 2
                turned = np.concatenate([joint.axis * np.sin(half), np.cos(half)], axis=1)
                turn = _multiply(turn, turned)
        return place, turn


def links(robot_description: str) -> list[str]:
    """Return the names of the links of a URDF. Raises ValueError if it is not XML."""
    return [link.get('name', '') for link in _parsed(robot_description).findall('link')]


def chain(robot_description: str, link: str) -> tuple[str, tuple[str, ...]]:
    """Return the root link above a link, and the joints whose positions move the link.

    A joint that mimics another one is represented by that one.

    Args:
        robot_description: A URDF.
        link: The name of one of its links.

    Raises:
        ValueError: The URDF is not XML or not a tree, or a joint mimics an unknown joint.
    """
    description = _parsed(robot_description)
    root, joints = _above(description, link)
    moving = [one.get('name', '') for one in joints if one.get('type') not in FIXED]
    return root, tuple(dict.fromkeys(_drive(description, name).joint for name in moving))


def _above(description: ElementTree.Element, link: str) -> tuple[str, list[ElementTree.Element]]:
    """Return the root link above a link, and the joints from there to the link."""
    above = {}
    for joint in description.findall('joint'):
        upper, lower = joint.find('parent'), joint.find('child')
        if upper is None or lower is None:
            raise ValueError(
                f'joint {joint.get("name")} of the URDF must have a parent and a child'
            )
        parent, child = upper.get('link', ''), lower.get('link', '')
        if child in above:
            raise ValueError(f'link {child} of the URDF must have one parent (got two joints)')
        above[child] = joint, parent
    joints, passed = [], {link}
    while link in above:
        joint, link = above[link]
        if link in passed:
            raise ValueError(f'the joints of the URDF must form a tree (got a circle at {link})')
        joints.append(joint)
        passed.add(link)
    return link, joints[::-1]


def _drive(description: ElementTree.Element, name: str, own: Container[str] = ()) -> _Drive:
    """Return the source of a joint's position.

    Args:
        description: The URDF.
        name: The name of the joint.
        own: Names of joints with given positions, which do not follow another joint.
    """
    joints = {one.get('name', ''): one for one in description.findall('joint')}
    independent = {
        one.get('name', '')
        for one in description.findall('ros2_control/joint')
        if one.get('mimic') == 'false'
    }
    drive, passed = _Drive(name), {name}
    while drive.joint not in own and drive.joint not in independent:
        mimic = joints[drive.joint].find('mimic')
        if mimic is None:
            break
        followed = mimic.get('joint', '')
        if followed not in joints or followed in passed:
            raise ValueError(
                f'mimic of joint {drive.joint} of the URDF must name a joint that does not follow '
                f'it (got {followed!r})'
            )
        passed.add(followed)
        multiplier, offset = (
            _number(drive.joint, mimic, key, default)
            for key, default in (('multiplier', '1'), ('offset', '0'))
        )
        drive = _Drive(
            followed, drive.multiplier * multiplier, drive.multiplier * offset + drive.offset
        )
    return drive


def _joint(element: ElementTree.Element) -> _Joint:
    name, kind = element.get('name', ''), element.get('type', '')
    if kind not in (*FIXED, *TURNS, *SLIDES):
        raise ValueError(
            f'joint {name} of the URDF must be fixed, revolute, continuous or prismatic '
            f'(got {kind}); name a link that is not moved by it'
        )
    origin = element.find('origin')
    place, rpy = (_numbers(name, origin, key, '0 0 0') for key in ('xyz', 'rpy'))
    axis = _numbers(name, element.find('axis'), 'xyz', '1 0 0')
    length = float(np.linalg.norm(axis))
    if kind not in FIXED and length == 0:
        raise ValueError(f'the axis of joint {name} of the URDF must have a length (got 0 0 0)')
    turn = _ONE
    for unit, angle in zip(np.eye(3)[::-1], rpy[::-1], strict=True):  # yaw, then pitch, then roll
        half = angle / 2
        turn = _multiply(turn, np.append(unit * math.sin(half), math.cos(half)))
    return _Joint(name, kind, place, turn, axis / (length or 1.0))


def _number(joint: str, element: ElementTree.Element, key: str, default: str) -> float:
    """Return the number of an attribute, or `default` where it is absent."""
    text = element.get(key, default)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f'{key} of joint {joint} of the URDF must be a number (got {text})')
    return number


def _numbers(
    joint: str, element: ElementTree.Element | None, key: str, default: str
) -> NDArray[np.float64]:
    """Return three numbers of an attribute, or of `default` where it is absent."""
    text = default if element is None else element.get(key, default)
    try:
        numbers = np.array([float(word) for word in text.split()])
    except ValueError:
        numbers = np.empty(0)
    if numbers.shape != (3,) or not np.isfinite(numbers).all():
        raise ValueError(f'{key} of joint {joint} of the URDF must be three numbers (got {text})')
    return numbers


def _multiply(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the product of quaternions xyzw [..., 4]: rotate by b, then by a."""
    vector_a, vector_b, real_a, real_b = a[..., :3], b[..., :3], a[..., 3:], b[..., 3:]
    vector = real_a * vector_b + real_b * vector_a + np.cross(vector_a, vector_b)
    real = real_a * real_b - (vector_a * vector_b).sum(-1, keepdims=True)
    return np.concatenate([vector, real], axis=-1)


def _rotate(turn: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors [..., 3] rotated by unit quaternions xyzw [..., 4]."""
    axis, real = turn[..., :3], turn[..., 3:]
    across = 2 * np.cross(axis, vector)
    return vector + real * across + np.cross(axis, across)


def _parsed(robot_description: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(robot_description)
    except ElementTree.ParseError as error:
        raise ValueError(f'robot_description must be XML ({error})') from error
