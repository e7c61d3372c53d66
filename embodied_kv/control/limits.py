"""Position, velocity and acceleration limits of each output of a robot.

Values are in SI units. No limit has a default: an arm without declared limits is not moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from xml.etree import ElementTree

import numpy as np

POSITION, VELOCITY = KINDS = ('position', 'velocity')
_SAME = 1e-6  # relative difference below which two files state the same limit


class LimitError(ValueError):
    """Raised for limits that are missing, impossible or wider than those of the robot."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Limits of every output of a robot, in the order of an action.

    Each array is float64 [joints] and read-only; `continuous` is bool [joints].

    Args:
        joints: Names of the outputs.
        lower: Smallest positions (rad or m); -inf without a limit.
        upper: Largest positions (rad or m); inf without a limit.
        velocity: Largest speeds (rad/s or m/s).
        acceleration: Largest accelerations (rad/s² or m/s²).
        kinds: One of KINDS for each output: whether an action is a position or a velocity.
        continuous: True for a joint that turns without end, so that positions which differ by a
            full turn are the same place. Such a joint may have position limits (for cables): they
            count in unwrapped radians, while its driver may still publish the angle wrapped.
            Default: none.

    Raises:
        LimitError: if a limit is missing or impossible.
    """

    joints: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    kinds: tuple[str, ...]
    continuous: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        object.__setattr__(self, 'joints', tuple(self.joints))
        object.__setattr__(self, 'kinds', tuple(self.kinds))
        if not self.joints or len(set(self.joints)) != len(self.joints):
            raise LimitError(
                f'joints must name at least one joint, each once (got {list(self.joints)})'
            )
        if len(self.kinds) != len(self.joints):
            raise LimitError(f'kinds must have one entry for each of {", ".join(self.joints)}')
        for name in ('lower', 'upper', 'velocity', 'acceleration'):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), self.joints))
        object.__setattr__(self, 'continuous', _flags(self.continuous, self.joints))
        for joint in range(len(self.joints)):
            self._check(joint)

    def _check(self, joint: int) -> None:
        name, kind = self.joints[joint], self.kinds[joint]
        lower, upper = self.lower[joint], self.upper[joint]
        if kind not in KINDS:
            raise LimitError(f"joint {name}: kind must be position or velocity (got '{kind}')")
        if not lower < upper:
            raise LimitError(
                f'joint {name}: lower must be < upper (got lower {lower:g} and upper {upper:g})'
            )
        for what in ('velocity', 'acceleration'):
            value = getattr(self, what)[joint]
            if not 0 < value < math.inf:
                raise LimitError(
                    f'joint {name}: {what} limit must be finite and > 0 (got {value:g})'
                )

    def __len__(self) -> int:
        return len(self.joints)

    @cached_property
    def by_velocity(self) -> np.ndarray:
        """Return which outputs take velocities: bool [joints]."""
        return np.array([kind == VELOCITY for kind in self.kinds])

    @cached_property
    def unbounded(self) -> np.ndarray:
        """Return which outputs need no measured position: bool [joints].

        These take velocities, have no position limit and are not continuous joints, as the axes of
        a Cartesian controller.
        """
        free = np.isinf(self.lower) & np.isinf(self.upper)
        return self.by_velocity & free & ~self.continuous

    def clip(self, actions: np.ndarray) -> np.ndarray:
        """Return actions, float64 [n, joints], within the position or velocity limits."""
        low = np.where(self.by_velocity, -self.velocity, self.lower)
        high = np.where(self.by_velocity, self.velocity, self.upper)
        return np.clip(actions, low, high)

    def check_against(self, robot_description: str) -> None:
        """Check that a URDF contains each joint and that no limit is wider than its own.

        An output without position limits, as an axis of a Cartesian controller, may have a name
        that is no joint.

        Raises:
            LimitError: if a joint is missing, is a mimic joint, is declared continuous although
                the URDF bounds it, or has a limit that is wider than that of the URDF.
        """
        urdf = _read(robot_description)
        for joint, name in enumerate(self.joints):
            if self.unbounded[joint] and name not in urdf:
                continue
            declared = _joint(urdf, name)
            if self.continuous[joint] and declared.type != 'continuous':
                raise LimitError(
                    f'joint {name}: continuous must be false, because the robot_description '
                    f'declares the joint as {declared.type} (got true); write its position limits'
                )
            for what, own, sign in (
                ('lower', self.lower[joint], -1),
                ('upper', self.upper[joint], 1),
                ('velocity', self.velocity[joint], 1),
            ):
                limit = getattr(declared, what)
                if limit is None or math.isinf(limit):
                    continue
                if sign * (own - limit) > _SAME * max(1.0, abs(limit)):
                    raise LimitError(
                        f'joint {name}: {what} limit must be within {limit:g}, the '
                        f'{declared.origin[what]} limit of the robot_description (got {own:g})'
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
        continuous: Sequence[bool] | None = None,
    ) -> Limits:
        """Return limits in which a URDF fills each value that is None.

        Position limits of the URDF are its hard limits, narrowed by the soft limits of
        `<safety_controller>` and by `min` and `max` of a `<command_interface>` of
        `<ros2_control>`. A joint is continuous where the URDF or `continuous` declares it.

        Args:
            robot_description: The URDF.
            joints: Names of the outputs.
            kinds: One of KINDS for each output.
            acceleration: Limits (rad/s² or m/s²); a URDF has none.
            lower, upper, velocity: One value or None for each output; None takes all of them from
                the URDF.
            continuous: Which joints are declared continuous outside the URDF.

        Raises:
            LimitError: if a limit is missing or wider than that of the URDF.
        """
        urdf, count = _read(robot_description), len(joints)
        columns: dict[str, np.ndarray] = {}
        for what, given in (('lower', lower), ('upper', upper), ('velocity', velocity)):
            given = (None,) * count if given is None else given
            if len(given) != count:
                raise LimitError(f'{what} must have one entry for each of {", ".join(joints)}')
            columns[what] = np.array(
                [
                    _from(urdf, name, what) if value is None else value
                    for name, value in zip(joints, given, strict=True)
                ]
            )
        limits = cls(
            tuple(joints),
            **columns,
            acceleration=np.asarray(acceleration),
            kinds=tuple(kinds),
            continuous=np.array(
                [
                    declared or (name in urdf and urdf[name].type == 'continuous')
                    for name, declared in zip(joints, _flags(continuous, joints), strict=True)
                ]
            ),
        )
        limits.check_against(robot_description)
        return limits


def linear_in_urdf(robot_description: str) -> dict[str, bool]:
    """Return for each movable joint of a URDF whether it is linear (m) instead of rotary (rad)."""
    return {name: joint.type == 'prismatic' for name, joint in _read(robot_description).items()}


@dataclass(frozen=True)
class _Joint:
    """The limits of a joint in a URDF; None where it has none.

    mimics: the joint that it follows, '' for none. origin: element that each limit comes from.
    """

    type: str
    lower: float | None
    upper: float | None
    velocity: float | None
    mimics: str
    origin: dict[str, str]


def _read(robot_description: str) -> dict[str, _Joint]:
    """Return the movable joints of a URDF by name. Raises LimitError for anything else."""
    try:
        root = ElementTree.fromstring(robot_description)
    except ElementTree.ParseError as error:
        raise LimitError(f'robot_description must be XML ({error})') from error
    if root.tag != 'robot':
        raise LimitError(f'robot_description must be a URDF (got the element <{root.tag}>)')
    controls: dict[str, list[ElementTree.Element]] = {}
    for element in root.findall('ros2_control/joint'):
        controls.setdefault(element.get('name', ''), []).append(element)
    return {
        name: _limit(element, controls.get(name, []))
        for element in root.findall('joint')
        if element.get('type') in ('revolute', 'prismatic', 'continuous')
        for name in [element.get('name', '')]
    }


def _limit(element: ElementTree.Element, controls: Sequence[ElementTree.Element]) -> _Joint:
    """Return the narrowest limits of a joint and of its ros2_control interfaces."""
    name, kind = element.get('name'), element.get('type', '')
    found: dict[str, tuple[float, str]] = {}

    def number(text: str | None, what: str) -> float | None:
        try:
            value = None if text is None else float(text)
        except ValueError as error:
            raise LimitError(
                f'joint {name}: {what} limit of the robot_description must be a number '
                f"(got '{text}')"
            ) from error
        if value is not None and math.isnan(value):
            raise LimitError(
                f'joint {name}: {what} limit of the robot_description must be a number (got NaN)'
            )
        return value

    def narrow(what: str, value: float | None, origin: str) -> None:
        if value is not None:
            keep = max if what == 'lower' else min
            found[what] = keep(found.get(what, (value, origin)), (value, origin))

    hard = element.find('limit')
    if kind == 'continuous':
        narrow('lower', -math.inf, 'hard')
        narrow('upper', math.inf, 'hard')
    elif hard is not None:  # URDF specification: a missing position limit is 0
        narrow('lower', number(hard.get('lower'), 'lower') or 0.0, 'hard')
        narrow('upper', number(hard.get('upper'), 'upper') or 0.0, 'hard')
    if hard is not None:
        narrow('velocity', number(hard.get('velocity'), 'velocity'), 'hard')
    soft = element.find('safety_controller')
    if soft is not None:
        for what in ('lower', 'upper'):
            narrow(what, number(soft.get(f'soft_{what}_limit'), f'soft {what}'), 'soft')
    for what, side, text in _of_interfaces(controls):
        value = number(text, f'ros2_control {side}')
        if what == 'position':
            narrow('lower' if side == 'min' else 'upper', value, 'ros2_control')
        elif value is not None:
            narrow('velocity', abs(value), 'ros2_control')
    mimic = element.find('mimic')
    follows = all(c.get('mimic') != 'false' for c in controls)
    return _Joint(
        type=kind,
        **{what: found.get(what, (None,))[0] for what in ('lower', 'upper', 'velocity')},
        mimics=mimic.get('joint', '') if mimic is not None and follows else '',
        origin={what: origin for what, (_, origin) in found.items()},
    )


def _of_interfaces(
    controls: Sequence[ElementTree.Element],
) -> Iterator[tuple[str, str, str | None]]:
    """Yield interface (position or velocity), side (min or max) and text of each limit.

    Interfaces with `<limits enable="false"/>` are skipped, as in ros2_control.
    """
    for interface in (i for control in controls for i in control.findall('command_interface')):
        limits = interface.find('limits')
        if limits is not None and limits.get('enable', '').lower() == 'false':
            continue
        for param in interface.findall('param'):
            kind, side = interface.get('name', ''), param.get('name', '')
            if kind in KINDS and side in ('min', 'max'):
                yield kind, side, param.text


def _joint(urdf: dict[str, _Joint], name: str) -> _Joint:
    """Return a joint that can be commanded. Raises LimitError for any other name."""
    if name not in urdf:
        known = ', '.join(sorted(urdf)) or 'none'
        raise LimitError(
            f'joint {name} must be a movable joint of the robot_description (it has: {known})'
        )
    if urdf[name].mimics:
        raise LimitError(
            f'joint {name} must not be commanded: it mimics {urdf[name].mimics}; command '
            f'{urdf[name].mimics} instead'
        )
    return urdf[name]


def _from(urdf: dict[str, _Joint], name: str, what: str) -> float:
    value = getattr(_joint(urdf, name), what)
    if value is None:
        raise LimitError(
            f'joint {name}: {what} limit is missing in the robot_description; write it in the '
            'contract'
        )
    return value


def _numbers(name: str, values: object, joints: Sequence[str]) -> np.ndarray:
    """Return a read-only copy, float64 [joints]. Raises LimitError."""
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise LimitError(f'{name} must be numbers (got {values})') from error
    if array.shape != (len(joints),):
        raise LimitError(
            f'{name} must have one number for each of {", ".join(joints)} '
            f'(got the shape {list(array.shape)})'
        )
    if np.isnan(array).any():
        joint = joints[int(np.isnan(array).argmax())]
        raise LimitError(f'joint {joint}: {name} must be a number (got NaN)')
    array.flags.writeable = False
    return array


def _flags(values: Sequence[bool] | np.ndarray | None, joints: Sequence[str]) -> np.ndarray:
    """Return a read-only copy, bool [joints]; all False for none. Raises LimitError."""
    array = np.array([False] * len(joints) if values is None or np.size(values) == 0 else values)
    if array.shape != (len(joints),) or array.dtype != bool:
        raise LimitError(
            f'continuous must be true or false for each of {", ".join(joints)} (got {values})'
        )
    array.flags.writeable = False
    return array
