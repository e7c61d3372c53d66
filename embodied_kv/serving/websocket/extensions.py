"""The capabilities of a policy server beyond openpi's protocol, as stated in its metadata.

They are one key of the metadata, which openpi's clients ignore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import metadata as packages
from typing import Any, cast

from embodied_kv.config import ModelConfig
from embodied_kv.engine_config import EngineConfig
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.mapping import ActionDimension, action_dimensions
from embodied_kv.robots.sources import is_joint
from embodied_kv.robots.units import STEPS
from embodied_kv.text import shown

KEY = 'embodied_kv'  # of the metadata
CHARACTERS = 256  # of a text in it
LISTED = 3  # differences in an error


@dataclass(frozen=True)
class ActionMeaning:
    """The meaning of one number of an action.

    Attributes:
        name: The name in the checkpoint if the contract has one, else that of the joint.
        joint: The joint, or the axis of a twist.
        kind: `position` (absolute, also for a relative contract), `velocity`, or `delta`, the
            displacement of a twist within one step.
        unit: The unit in the contract, for example `rad/step`.
    """

    name: str
    joint: str
    kind: str
    unit: str

    def __str__(self) -> str:
        label = shown(self.joint)
        if self.name != self.joint:
            label = f'{shown(self.name)} ({label})'
        return f'{label}, {shown(self.kind)} in {shown(self.unit)}'


def meaning(contract: Contract) -> tuple[ActionMeaning, ...]:
    """Return the meaning of each number of an action of a contract, in order."""
    has_names = contract.action[0].names is not None
    return tuple(
        ActionMeaning(d.name if has_names else d.axis, d.axis, _kind(d), d.unit)
        for d in action_dimensions(contract)
    )


def _kind(dimension: ActionDimension) -> str:
    if not dimension.is_velocity:
        return 'position'
    per_step = dimension.unit in STEPS and not is_joint(dimension.select)
    return 'delta' if per_step else 'velocity'


def differences(there: Sequence[ActionMeaning], here: Sequence[ActionMeaning]) -> list[str]:
    """Return a description of each number of an action with different meanings.

    Joints may have different names if both contracts give the number the same name of the
    checkpoint, unless they are the same joints in another order.
    """
    joints = {action.joint for action in here}
    found = []
    for place, (other, own) in enumerate(zip(there, here, strict=True)):
        if other.joint == own.joint:
            has_names = other.name != other.joint and own.name != own.joint
            same = other.name == own.name or not has_names
        else:
            same = other.name == own.name and other.joint not in joints
        if not same or (other.kind, other.unit) != (own.kind, own.unit):
            found.append(f'number {place} is {other} there and {own} here')
    return found


def compared(there: Sequence[ActionMeaning], here: Sequence[ActionMeaning]) -> str:
    """Return the differences of the meanings in one line; '' if there are none."""
    found = differences(there, here)
    more = f'; and {len(found) - LISTED} more' if len(found) > LISTED else ''
    return '; '.join(found[:LISTED]) + more


@dataclass(frozen=True)
class Extensions:
    """The extensions of one server, which also repeats the `request_id` in each reply.

    Older servers do not send the fields that have a default.

    Attributes:
        chunk_size, action_dim, dt: Length, action length and action period (s) of chunks.
        leftover: A request may contain the actions that the robot still executes.
        deadlines: A request may have a deadline.
        questions: `ask` is answered.
        min_euler_steps: Minimum number of Euler steps of a chunk.
        version: Version of this package.
        contract: The robot_type of the contract.
        action_meaning: Meaning of each number of an action; empty if the server does not state it.
        fingerprint: Fingerprint of the engine.
        refusals: A request may ask for a reply `refused` in place of a closed connection.
        executions: A request may have an `execution_horizon` and report an `execution`.
        words: `ask` accepts the contract's prompts and `about`, and `look` is supported.
        exports: `export` and `import` are supported.
        memory: The server keeps memories.
        resize: How its policy resizes images, by the name of a `Resize`; empty if unknown.
    """

    chunk_size: int
    action_dim: int
    dt: float
    leftover: bool
    deadlines: bool
    questions: bool
    min_euler_steps: int
    version: str = ''
    contract: str = ''
    action_meaning: tuple[ActionMeaning, ...] = ()
    fingerprint: str = ''
    refusals: bool = False
    executions: bool = False
    words: bool = False
    exports: bool = False
    memory: bool = False
    resize: str = ''

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        config: EngineConfig,
        questions: bool,
        contract: Contract | None = None,
        fingerprint: str = '',
        memory: bool = False,
        resize: str = '',
    ) -> Extensions:
        """Return the extensions of this server; `questions`: whether the contract allows any."""
        return cls(
            chunk_size=model.chunk_size,
            action_dim=model.action_dim,
            dt=model.action_dt,
            leftover=config.rtc != 'off',
            deadlines=config.time_budget,
            questions=questions,
            min_euler_steps=config.min_euler_steps,
            version=_version(),
            contract=contract.robot_type if contract else '',
            action_meaning=meaning(contract) if contract else (),
            fingerprint=str(fingerprint),  # a plain string, also of a subclass
            refusals=True,
            executions=True,
            words=True,
            exports=True,
            memory=memory,
            resize=resize,
        )

    @property
    def metadata(self) -> dict[str, object]:
        return {KEY: asdict(self)}

    @classmethod
    def read(cls, metadata: object) -> Extensions | None:
        """Return the extensions in the metadata of a server; None for none. Raises ValueError."""
        if not isinstance(metadata, Mapping):
            raise ValueError(f'metadata must be a map (got {type(metadata).__name__})')
        given = metadata.get(KEY)
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise ValueError(f'{KEY} must be a map (got {type(given).__name__})')
        found: dict[str, Any] = {
            f.name: READERS[str(f.type)](f'{KEY}.{f.name}', given.get(f.name))
            for f in fields(cls)
            if f.name in given or f.default is MISSING
        }
        if not 0 < found['dt'] < math.inf:
            raise ValueError(f'{KEY}.dt must be a time above 0 s (got {found["dt"]})')
        if found.get('action_meaning') and len(found['action_meaning']) != found['action_dim']:
            raise ValueError(
                f'{KEY}.action_meaning must have {found["action_dim"]} entries, one for each '
                f'number of an action (got {len(found["action_meaning"])})'
            )
        return cls(**found)


def _version() -> str:
    """Return the version of this package; '' if it is not installed."""
    try:
        return packages.version('embodied_kv')
    except packages.PackageNotFoundError:
        return ''


def _value(kind: type | tuple[type, ...], key: str, value: object) -> object:
    if not isinstance(value, kind) or (kind is int and not 0 < cast(int, value) < 2**16):
        raise ValueError(f'{key} must be a valid value (got {shown(value)})')
    return value


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > CHARACTERS:
        raise ValueError(f'{key} must be text of at most {CHARACTERS} characters')
    return value


def _actions(key: str, value: object) -> tuple[ActionMeaning, ...]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f'{key} must be a list of maps')
    names = [f.name for f in fields(ActionMeaning)]
    return tuple(
        ActionMeaning(*(_text(f'{key}.{name}', one.get(name)) for name in names)) for one in value
    )


READERS = {  # by the type of a field
    'int': lambda key, value: _value(int, key, value),
    'float': lambda key, value: _value((int, float), key, value),
    'bool': lambda key, value: _value(bool, key, value),
    'str': _text,
    'tuple[ActionMeaning, ...]': _actions,
}
