"""ROS parameters from dataclasses: one parameter for each field, read back as the dataclass.

The metadata of a field are `help`; `range` (of each element, for arrays); `check`, which raises
ValueError for an invalid value; and `when`, the latest time of a change: 'start' (the default:
read-only), 'configure' or 'live'. The names in `old` (former names), `replaces` and `removed`
(removed parameters with and without a replacement) are refused. Misspelt names are refused, too,
because ROS would ignore them: with `shaddow` instead of `shadow`, the arm would move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from itertools import takewhile
from typing import Any, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.parameter import Parameter

from embodied_kv.parameter import parameter as param
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import shipped

T = TypeVar('T')
Value = bool | int | float | str | Sequence[float] | Sequence[str]


def one_of(names: Sequence[str]) -> Callable[[str], None]:
    """Return a check that a value is one of some names."""

    def check(value: str) -> None:
        if value not in names:
            raise ValueError(f'must be one of {", ".join(names)} (got {value!r})')

    return check


@dataclass(frozen=True)
class SuiteParams:
    """Parameters that all nodes of a suite have in common."""

    contract: str = param(
        '',
        'Contract of the robot: the name of a shipped contract, or a YAML file',
        'start',
        replaces=(
            *('joint_names', 'views', 'image_topics', 'lower_limits', 'upper_limits', 'prompts'),
            *('max_joint_step', 'max_jump', 'publish_setpoints', 'tick_commands'),
        ),
    )
    preset: str = param('', 'Model dimensions by name; empty: those of the checkpoint', 'start')
    checkpoint: str = param(
        '',
        'Folder or file of weights, or owner/name@revision of the Hugging Face hub; empty: those '
        "of the preset; 'random': untrained weights",
        'start',
    )
    control_frequency: float = param(
        10.0,
        'Frames, and control periods, per second (Hz)',
        'start',
        range=(0.1, 200.0),
        old=('rate',),
    )
    autostart: bool = param(True, 'Configure and activate at the start', 'start')

    def embodiment(self) -> Embodiment:
        """Return the robot of the contract. Raises ValueError, ContractError."""
        if not self.contract:
            raise ValueError(
                f'parameter contract must be one of {", ".join(shipped())}, or a YAML file (got '
                'an empty name)'
            )
        return Embodiment.load(self.contract)

    @property
    def period(self) -> float:
        """Return the time (s) between two frames."""
        return 1.0 / self.control_frequency


class Parameters:
    """The parameters of one node.

    problems: why values at the start are refused, by parameter, until a valid one is set.

    Args:
        node: The node that declares them.
        parts: (prefix, dataclass) pairs; a prefix is '' or, for example, 'engine.'.
        locked: Return whether parameters of `when` 'configure' must not change.
    """

    def __init__(
        self, node: Node, parts: Sequence[tuple[str, type]], locked: Callable[[], bool]
    ) -> None:
        self._node, self._parts, self._locked = node, parts, locked
        self._fields = {prefix + f.name: f for prefix, part in parts for f in fields(part)}
        self._live: dict[str, Value] = {}
        self._watchers: dict[str, Callable[[Any], None]] = {}
        self.problems: dict[str, str] = {}
        for name, f in self._fields.items():
            self._declare(name, f)
        self._refuse_names(node._parameter_overrides)  # undeclared names are only there
        node.add_on_set_parameters_callback(self._on_set)

    def check(self) -> None:
        """Check the values at the start. Raises ValueError with all problems."""
        if self.problems:
            raise ValueError('; '.join(self.problems.values()))

    def read(self, part: type[T]) -> T:
        """Return the values of one part. Raises ValueError that names the parameter."""
        prefix, known = next(pair for pair in self._parts if pair[1] is part)
        names = [prefix + f.name for f in fields(known)]
        if problems := [self.problems[name] for name in names if name in self.problems]:
            raise ValueError('; '.join(problems))
        values = {name: self._value(name) for name in names}
        for name, value in values.items():
            if problem := _problem(name, value, self._fields[name]):
                raise ValueError(problem)
        return part(**{name.removeprefix(prefix): value for name, value in values.items()})

    def watch(self, name: str, changed: Callable[[Any], None]) -> None:
        """Call back with each new value of a parameter, while the node is configured."""
        self._watchers[name] = changed

    def _value(self, name: str) -> Value:
        value = self._live.get(name, self._node.get_parameter(name).value)
        return tuple(value) if isinstance(self._fields[name].default, tuple) else value

    def _declare(self, name: str, f: Field) -> None:
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        try:
            self._node.declare_parameter(name, default, _descriptor(f))
        except ParameterException as error:
            self.problems[name] = f'parameter {name}: {error}'
            self._node.declare_parameter(name, default, _descriptor(f), ignore_override=True)

    def _refuse_names(self, given: Mapping[str, object]) -> None:
        """Note values under former, removed and misspelt names as problems."""
        for prefix, part in self._parts:
            for f in fields(part):
                new = prefix + f.name
                for old in (prefix + name for name in f.metadata.get('old', ())):
                    if old in given and old not in self._fields:
                        self.problems[new] = f'parameter {old} was renamed; use {new}'
                removed = [
                    f'parameter {gone} was removed; {remedy}'
                    for kind, remedy in (('replaces', f'use {new}'), ('removed', 'delete it'))
                    for gone in (prefix + name for name in f.metadata.get(kind, ()))
                    if gone in given and gone not in self._fields
                ]
                if removed:
                    self.problems[new] = '; '.join(removed)
        for other in given.keys() - self._fields:
            for name in self._fields:
                if _misspells(other, name):
                    self.problems[name] = f'parameter {other} is unknown: did you mean {name}?'

    def _on_set(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        ours = [p for p in parameters if p.name in self._fields]
        for p in ours:
            f = self._fields[p.name]
            if _when(f) == 'configure' and self._locked():
                reason = f'parameter {p.name} is fixed while the node is configured; clean it up'
                return SetParametersResult(successful=False, reason=reason)
            if problem := _problem(p.name, p.value, f):
                return SetParametersResult(successful=False, reason=problem)
        for p in ours:
            self.problems.pop(p.name, None)
            if _when(self._fields[p.name]) == 'live':
                self._live[p.name] = p.value
            if p.name in self._watchers and self._locked():
                self._watchers[p.name](p.value)
        return SetParametersResult(successful=True)


def _when(f: Field) -> str:
    return f.metadata.get('when', 'start')


def _misspells(given: str, name: str) -> bool:
    """Return whether one letter is wrong, missing or extra, or two adjacent ones are swapped."""
    pairs = zip(given, name, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    a, b = given[same:], name[same:]
    return b[1:] in (a[1:], a) or a[1:] == b or (a[:2] == b[1::-1] and a[2:] == b[2:])


def _descriptor(f: Field) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=f.metadata['help'], read_only=_when(f) == 'start')
    low, high = f.metadata.get('range', (None, None))
    if low is None:
        return descriptor
    if isinstance(f.default, tuple):
        descriptor.additional_constraints = f'each from {low} to {high}'
    elif isinstance(f.default, float):
        descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
    else:
        descriptor.integer_range = [IntegerRange(from_value=low, to_value=high, step=1)]
    return descriptor


def _problem(name: str, value: Any, f: Field) -> str:
    """Return why a value of the right type is invalid; '' if it is valid."""
    low, high = f.metadata.get('range', (None, None))
    values = value if isinstance(f.default, tuple) else (value,)
    for element in values:
        if low is not None and not low <= element <= high:  # also refuses NaN
            return f'parameter {name} must be from {low} to {high} (got {element})'
    try:
        f.metadata.get('check', lambda value: None)(value)
    except ValueError as error:
        return f'parameter {name}: {error}'
    return ''
