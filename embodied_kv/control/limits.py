"""How far, how fast and how abruptly each output of a robot may be moved.

Knows numbers in SI, and the <limit> of a URDF's joints. Does not know motions or policies. Nothing
has a default: an arm whose limits nobody wrote down is not moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree import ElementTree

import numpy as np

POSITION, VELOCITY = KINDS = ('position', 'velocity')
_SAME = 1e-6  # what two files that mean the same limit may differ by, relatively


class LimitError(ValueError):
    """Limits that are missing, impossible or wider than the robot's; says what to write."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Of every output of a robot, in the order of its actions: each float64 [joints], read-only.

    joints: their names. lower, upper: positions, rad or m; infinite where there are none, as of
    the axes of a Cartesian controller. velocity, acceleration: magnitudes, rad/s or m/s, and per s
    again. kinds: of KINDS, what an action is of this output. Raises LimitError.
    """

    joints: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, 'joints', tuple(self.joints))
        object.__setattr__(self, 'kinds', tuple(self.kinds))
        if not self.joints or len(set(self.joints)) != len(self.joints):
            raise LimitError(f'limits need joints, each named once: got {list(self.joints)}')
        if len(self.kinds) != len(self.joints):
            raise LimitError(f'kinds: write one for each of {", ".join(self.joints)}')
        for name in ('lower', 'upper', 'velocity', 'acceleration'):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), self.joints))
        for joint in range(len(self.joints)):
            self._check(joint)

    def _check(self, joint: int) -> None:
        name, kind = self.joints[joint], self.kinds[joint]
        lower, upper = self.lower[joint], self.upper[joint]
        if kind not in KINDS:
            raise LimitError(f"joint {name}: kind is '{kind}': write position or velocity")
        if not lower < upper:
            raise LimitError(
                f'joint {name}: lower is {lower:g} and upper {upper:g}: write a lower limit that '
                'is below the upper one'
            )
        for what in ('velocity', 'acceleration'):
            value = getattr(self, what)[joint]
            if not 0 < value < math.inf:
                raise LimitError(
                    f'joint {name}: {what} limit is {value:g}: write a finite number above 0'
                )

    def __len__(self) -> int:
        return len(self.joints)

    @cached_property
    def by_velocity(self) -> np.ndarray:
        """bool [joints]: whose actions are velocities."""
        return np.array([kind == VELOCITY for kind in self.kinds])

    @cached_property
    def unbounded(self) -> np.ndarray:
        """bool [joints]: which have no position limit at all, and need no measured position."""
        return self.by_velocity & np.isinf(self.lower) & np.isinf(self.upper)

    def clip(self, actions: np.ndarray) -> np.ndarray:
        """Actions float64 [n, joints], each of its kind, within positions or velocities."""
        low = np.where(self.by_velocity, -self.velocity, self.lower)
        high = np.where(self.by_velocity, self.velocity, self.upper)
        return np.clip(actions, low, high)

    def check_against(self, robot_description: str) -> None:
        """Refuses what contradicts a URDF: a joint that it lacks, a limit wider than its own.

        An output without position limits, as an axis of a Cartesian controller, may have a name
        that is no joint. Raises LimitError with both numbers side by side.
        """
        urdf = _read(robot_description)
        for joint, name in enumerate(self.joints):
            if self.unbounded[joint] and name not in urdf:
                continue
            theirs = _joint(urdf, name)
            for what, mine, wider in (
                ('lower', self.lower[joint], -1),
                ('upper', self.upper[joint], 1),
                ('velocity', self.velocity[joint], 1),
            ):
                limit = getattr(theirs, what)
                if limit is None or math.isinf(limit):
                    continue
                if wider * (mine - limit) > _SAME * max(1.0, abs(limit)):
                    raise LimitError(
                        f'joint {name}: {what} limit is {mine:g}, the robot_description says '
                        f'{limit:g}: write a limit within it'
                    )

    @classmethod
    def from_urdf(
        cls,
        robot_description: str,
        joints: Sequence[str],
        kinds: Sequence[str],
        acceleration: Sequence[float],
        *,
        lower: Sequence[float | None] | None = None,
        upper: Sequence[float | None] | None = None,
        velocity: Sequence[float | None] | None = None,
    ) -> Limits:
        """Limits of which a URDF gives what is left open: None for a joint, or for all of them.

        A URDF knows no acceleration: that must be given. Raises LimitError, also for what is given
        and wider than the URDF's.
        """
        urdf, count = _read(robot_description), len(joints)
        columns = {}
        for what, given in (('lower', lower), ('upper', upper), ('velocity', velocity)):
            given = (None,) * count if given is None else given
            if len(given) != count:
                raise LimitError(f'{what}: write one for each of {", ".join(joints)}')
            columns[what] = [
                _from(urdf, name, what) if value is None else value
                for name, value in zip(joints, given, strict=True)
            ]
        limits = cls(tuple(joints), **columns, acceleration=acceleration, kinds=tuple(kinds))
        limits.check_against(robot_description)
        return limits


@dataclass(frozen=True)
class _Joint:
    """What a URDF says of a joint; None where it says nothing."""

    lower: float | None
    upper: float | None
    velocity: float | None


def _read(robot_description: str) -> dict[str, _Joint]:
    """The movable joints of a URDF by name. Raises LimitError where it is none."""
    try:
        root = ElementTree.fromstring(robot_description)
    except ElementTree.ParseError as error:
        raise LimitError(f'robot_description is no XML: {error}') from error
    if root.tag != 'robot':
        raise LimitError(f'robot_description is no URDF: it begins with <{root.tag}>')
    return {
        element.get('name', ''): _limit(element)
        for element in root.findall('joint')
        if element.get('type') in ('revolute', 'prismatic', 'continuous')
    }


def _limit(element: ElementTree.Element) -> _Joint:
    name, limit = element.get('name'), element.find('limit')

    def number(what: str) -> float | None:
        text = None if limit is None else limit.get(what)
        try:
            return None if text is None else float(text)
        except ValueError as error:
            raise LimitError(
                f"joint {name}: the robot_description's {what} limit is '{text}', no number"
            ) from error

    if element.get('type') == 'continuous':
        return _Joint(-math.inf, math.inf, number('velocity'))
    if limit is None:
        return _Joint(None, None, None)
    # The specification's default of a limit that is not written is 0.
    return _Joint(number('lower') or 0.0, number('upper') or 0.0, number('velocity'))


def _joint(urdf: dict[str, _Joint], name: str) -> _Joint:
    if name not in urdf:
        there = ', '.join(sorted(urdf)) or 'none'
        raise LimitError(
            f'joint {name} is no movable joint of the robot_description; there are: {there}'
        )
    return urdf[name]


def _from(urdf: dict[str, _Joint], name: str, what: str) -> float:
    value = getattr(_joint(urdf, name), what)
    if value is None:
        raise LimitError(
            f'joint {name}: nobody says its {what} limit: the robot_description has none, so '
            'write it in the contract'
        )
    return value


def _numbers(name: str, values: object, joints: Sequence[str]) -> np.ndarray:
    """float64 [joints], read-only and nobody else's."""
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise LimitError(f'{name}: write numbers, got {values}') from error
    if array.shape != (len(joints),):
        raise LimitError(
            f'{name}: write one number for each of {", ".join(joints)}; got {list(array.shape)}'
        )
    if np.isnan(array).any():
        raise LimitError(f'joint {joints[int(np.isnan(array).argmax())]}: {name} is not a number')
    array.flags.writeable = False
    return array
