"""Convert contracts of rosetta, a bridge between ROS 2 and LeRobot, to contracts of this project.

Both list channels and the fields selected from them. A contract of rosetta has no limits, and it
has sections without a counterpart here, which `convert` lists. Its codecs, code, are not run.

Source: https://github.com/iblnkn/rosetta, doc/reference/contract.md, format of August 2026.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from embodied_kv.robots.channels import (
    COMPRESSED,
    IMAGE,
    JOINT_STATE,
    MULTI_ARRAY,
    POSE,
    TRAJECTORY,
    TWIST,
)
from embodied_kv.robots.contract import ACTION, STATE
from embodied_kv.robots.reading import EXTENSION, ContractError, read_yaml
from embodied_kv.robots.sources import is_joint, limited

INTERFACE = 'robot_interface'
RECORDED = ('rewards', 'signals', 'info', 'complementary_data')
OBSERVED, COMMANDED = (JOINT_STATE, POSE), (JOINT_STATE, TRAJECTORY, MULTI_ARRAY, TWIST)
DROPPED = 'dropped: a checkpoint with these numbers does not fit'
LINEAR = 'write m for linear joints'
# Counterparts here of the sections and keys of rosetta.
INSTEAD = {
    'tasks': 'topic instruction; option --task-topic of the export of bags',
    'rewards': 'not recorded or exported',
    'signals': 'not recorded; the export ends episodes by option --episode-topic',
    'info': 'not recorded or exported',
    'complementary_data': 'not recorded or exported',
    'teleop.input': 'service control/takeover: the operator commands the controllers',
    'teleop.events': 'services control/takeover and record',
    'teleop.feedback': 'none: forces are not sent to an operator',
    'adjunct': 'record these topics with ros2 bag record',
    'qos': "profiles of the suite's subscriptions (docs/nodes.md)",
    'dtype': 'numbers are float32 in data sets',
    'align': 'the newest by stamp, within max_image_age and max_state_age',
    'safety': 'the arm brakes and holds if no chunk arrives (docs/safety.md)',
    'kind': 'normalization is that of the checkpoint',
    'resize': 'the size is that of the checkpoint; data sets keep that of the camera',
    'decoder': f'code of a contract is not run; {DROPPED}',
    'encoder': f'code of a contract is not run; {DROPPED}',
}


@dataclass(frozen=True)
class Loss:
    """A part without a counterpart, or an assumed value. instead: what applies here, or a fix."""

    key: str
    value: str
    instead: str


@dataclass
class Converted:
    """A converted contract. assumed: values that the contract of rosetta does not contain."""

    values: dict[str, Any]
    lost: list[Loss] = field(default_factory=list)
    assumed: list[Loss] = field(default_factory=list)

    @property
    def changes_numbers(self) -> bool:
        """Return whether numbers of the state or of an action are missing."""
        return any(DROPPED in loss.instead for loss in self.lost)


def convert(text: str, name: str, acceleration: float, frame: str) -> Converted:
    """Return a contract of rosetta as the values of one of this project.

    text, name: YAML of the contract, and its source for errors. acceleration: limit of each axis
    (rad/s² or m/s²). frame: frame of twists. Raises ContractError for any other text.
    """
    return _Converter(_read(text, name), name).converted(acceleration, frame)


def _read(text: str, name: str) -> dict[str, Any]:
    values = read_yaml(text, name)
    if not isinstance(values, dict) or INTERFACE not in values:
        raise ContractError(
            f'{name} must be a contract of rosetta with {INTERFACE} (got none); '
            'a contract of this project needs no import'
        )
    if values[INTERFACE] != 'ros2':
        raise ContractError(f'{name}: {INTERFACE} must be ros2 (got {values[INTERFACE]})')
    for section in ('observations', 'actions'):
        if not isinstance(values.get(section), dict):
            raise ContractError(
                f'{name}: {section} must be a map of keys (got '
                f'{type(values.get(section)).__name__}); use the present format of rosetta'
            )
    return values


class _Converter:
    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._given, self._name = values, name
        self._lost: list[Loss] = []
        self._many: dict[tuple[str, str], list[str]] = {}  # places by key and value

    def converted(self, acceleration: float, frame: str) -> Converted:
        observations = dict(self._observations())
        action = [
            source | ({'frame': frame} if source['channel']['type'] == TWIST else {})
            for source in self._action()
        ]
        self._unused()
        axes = [limited(select) for source in action for select in source['select']]
        values = {
            'robot_type': self._given.get('robot_type'),
            'fps': self._given.get('fps'),
            'observations': observations,
            'actions': {ACTION: action},
            'limits': {axis: {'acceleration': acceleration} for axis in axes},
        }
        for (key, value), places in self._many.items():
            where = places[0] if len(places) == 1 else f'{places[0]} and {len(places) - 1} more'
            self._lost.append(Loss(f'{key} of {where}', value, INSTEAD[key]))
        instead = "write the robot's own before the arm moves"
        assumed = [Loss('limits.*.acceleration', f'{acceleration:g} rad/s² or m/s²', instead)]
        parts = [*observations[STATE], *action]
        radians = [s for p in parts if p['unit'].startswith('rad') for s in p['select']]
        if joints := dict.fromkeys(limited(s) for s in radians if is_joint(s)):
            assumed.append(Loss('unit', f'rad for {", ".join(joints)}', LINEAR))
        if any('frame' in source for source in action):
            assumed.append(Loss('frame of twists', frame, "write that of the robot's controller"))
        return Converted(values, self._lost, assumed)

    # ------------------------------------------------------------------ sections

    def _observations(self) -> Iterator[tuple[str, Any]]:
        state: list[dict[str, Any]] = []
        for key, entry in self._given['observations'].items():
            where = f'observations.{key}'
            sources = self._sources(where, entry)
            if any(source['channel']['type'] in (IMAGE, COMPRESSED) for source in sources):
                yield key, self._view(where, sources)
            elif key == STATE:
                for place, source in _numbered(where, sources):
                    state += self._numbers(place, source, OBSERVED)
            else:
                selected = [select for source in sources for select in source.get('select') or ()]
                self._lose(where, _line(selected), f'only {STATE} has numbers; {DROPPED}')
        yield STATE, state

    def _view(self, where: str, sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if len(sources) != 1:
            raise ContractError(f'{self._name}: {where} must have one camera (got {len(sources)})')
        for operator, value in _operators(sources[0]):
            instead = INSTEAD.get(operator, 'not applied')
            self._lose(f'{where}.apply.{operator}', _line(value), instead)
        return {'channel': self._channel(where, sources[0])}

    def _action(self) -> Iterator[dict[str, Any]]:
        for key, entry in self._given['actions'].items():
            where = f'actions.{key}'
            for place, source in _numbered(where, self._sources(where, entry)):
                if key == ACTION:
                    for part in self._numbers(place, source, COMMANDED):
                        yield part | {'relative': False}
                else:
                    selected = _line(source.get('select') or ())
                    self._lose(place, selected, f'there is one {ACTION}; {DROPPED}')

    def _unused(self) -> None:
        """List the sections without a counterpart, and unknown ones."""
        known = {'robot_type', 'fps', INTERFACE, 'observations', 'actions'}
        for section, value in self._given.items():
            if section in known or str(section).startswith(EXTENSION):
                continue
            if section == 'teleop' and isinstance(value, dict):
                for role, content in value.items():
                    self._lose(f'teleop.{role}', _topics(content), f'teleop.{role}')
            else:
                self._lose(section, _topics(value), section)

    # ------------------------------------------------------------------ a source

    def _sources(self, where: str, entry: object) -> list[dict[str, Any]]:
        sources: list[Any] = entry if isinstance(entry, list) else [entry]
        for source in sources:
            channel = source.get('channel') if isinstance(source, dict) else None
            if not isinstance(channel, dict) or not {'topic', 'type'} <= channel.keys():
                raise ContractError(
                    f'{self._name}: {where}.channel must have topic and type (got {channel}); '
                    'use the present format of rosetta'
                )
        return sources

    def _channel(self, where: str, source: Mapping[str, Any]) -> dict[str, str]:
        """Return the channel, and note the keys of the source that have no counterpart."""
        channel = source['channel']
        for key in ('qos', 'dtype', 'safety'):
            if key in channel:
                value = 'profiles' if key == 'qos' else str(channel[key])
                self._many.setdefault((key, value), []).append(where)
        if align := source.get('align'):
            self._many.setdefault(('align', _line(align)), []).append(where)
        if kind := source.get('kind'):
            self._many.setdefault(('kind', str(kind)), []).append(where)
        return {'topic': channel['topic'], 'type': channel['type']}

    def _numbers(
        self, where: str, source: Mapping[str, Any], types: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the converted sources of a source, one per unit; list what is lost."""
        channel, selected = self._channel(where, source), source.get('select') or ()
        if code := [key for key in ('decoder', 'encoder') if key in source['channel']]:
            self._lose(f'{where}.channel.{code[0]}', source['channel'][code[0]], code[0])
        elif channel['type'] not in types:
            instead = f'type must be one of {", ".join(types)}; {DROPPED}'
            self._lose(where, f'{channel["type"]}: {_line(selected)}', instead)
        elif not selected:
            self._lose(where, f'{channel["type"]} without select', DROPPED)
        else:
            yield from self._of_one_unit(where, source, channel, types is COMMANDED)

    def _of_one_unit(
        self, where: str, source: Mapping[str, Any], channel: dict[str, str], commanded: bool
    ) -> Iterator[dict[str, Any]]:
        degrees, clamp = self._applied(where, source, commanded)
        for unit, selects in groupby(source['select'], lambda select: _unit(select, degrees)):
            some = list(selects)
            if unit is None or (commanded and not _fits(channel['type'], unit)):
                self._lose(f'{where}.select', _line(some), DROPPED)
                continue
            part: dict[str, Any] = {'channel': channel, 'select': some, 'unit': unit}
            yield part | ({'clamp': [clamp] * len(some)} if clamp else {})

    def _applied(
        self, where: str, source: Mapping[str, Any], commanded: bool
    ) -> tuple[bool, list[float] | None]:
        """Return whether the policy's unit is degrees, and the clamp in its unit."""
        degrees, clamp = False, None
        for operator, value in _operators(source):
            if operator == 'rad2deg' and not degrees:
                degrees = True
                clamp = clamp and [math.degrees(bound) for bound in clamp]
            elif operator == 'clamp' and commanded and clamp is None and _is_range(value):
                clamp = [float(value['min']), float(value['max'])]
            else:
                instead = 'not applied: the numbers differ where it acts'
                self._lose(f'{where}.apply.{operator}', _line(value), instead)
        return degrees, clamp

    def _lose(self, key: str, value: object, instead: str) -> None:
        self._lost.append(Loss(key, str(value), INSTEAD.get(instead, instead)))


def _numbered(where: str, sources: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the sources with their places, which are numbered if there are several."""
    if len(sources) == 1:
        return [(where, sources[0])]
    return [(f'{where}[{i}]', source) for i, source in enumerate(sources)]


def _operators(source: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the operators of a source with their arguments."""
    for operator in source.get('apply') or ():
        if isinstance(operator, dict):
            yield from ((str(name), value) for name, value in operator.items())
        else:
            yield str(operator), ''


def _unit(select: object, degrees: bool) -> str | None:
    """Return the policy's unit of a selection; None if it cannot be selected here."""
    angle = 'deg' if degrees else 'rad'
    group, _, rest = str(select).partition('.')
    if group in ('position', 'velocity') and rest:
        return angle if group == 'position' else f'{angle}/s'
    if group == 'twist' and rest.startswith('angular.'):
        return f'{angle}/s'
    if group == 'twist' and rest.startswith('linear.') and not degrees:
        return 'm/s'
    if group == 'pose' and rest.startswith('position.') and not degrees:
        return 'm'
    return None


def _fits(type_: str, unit: str) -> bool:
    """Return whether a type can command a number of a unit."""
    is_velocity = unit.endswith('/s')
    return is_velocity if type_ == TWIST else type_ == MULTI_ARRAY or not is_velocity


def _is_range(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {'min', 'max'}:
        return False
    bounds = value['min'], value['max']
    numbers = [isinstance(x, int | float) and type(x) is not bool for x in bounds]
    return all(numbers) and -math.inf < bounds[0] < bounds[1] < math.inf


def _line(value: object) -> str:
    """Return a value of YAML in one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ', '.join(f'{key}: {_line(entry)}' for key, entry in value.items())
    if isinstance(value, Sequence):
        return ', '.join(_line(entry) for entry in value)
    return str(value)


def _topics(value: object) -> str:
    """Return the topics of a section, or its keys."""
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, Mapping):
            if isinstance(entry.get('topic'), str):
                found.append(entry['topic'])
            for inner in entry.values():
                walk(inner)
        elif isinstance(entry, list):
            for inner in entry:
                walk(inner)

    walk(value)
    return ', '.join(found) or _line(value)
