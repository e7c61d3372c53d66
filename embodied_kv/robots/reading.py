"""From a file to a Contract, or to a message that says what is wrong, where, and what to write."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from embodied_kv.robots.contract import Contract, JointLimits
from embodied_kv.robots.sources import ActionSource, StateSource, View

SHIPPED = Path(__file__).parent / 'contracts'
SHOWN = 6  # problems that are told at once
EXTENSION = 'x-'  # what begins so is for others, and for YAML anchors


class ContractError(ValueError):
    """A contract that cannot be used: file, field, and what to write."""


def shipped() -> tuple[str, ...]:
    """The names of the contracts that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob('*.yaml')))


def load(contract: str | Path) -> Contract:
    """A contract by the name of one that is shipped, or by the path of a file.

    Raises ContractError.
    """
    path = SHIPPED / f'{contract}.yaml' if str(contract) in shipped() else Path(contract)
    path = path.expanduser()
    if not path.is_file():
        raise ContractError(
            f'contract {str(contract)!r}: no such file, and none of {", ".join(shipped())}'
        )
    try:
        return of_text(path.read_text(encoding='utf-8'), str(path))
    except UnicodeDecodeError as error:
        raise ContractError(f'{path} is not YAML: {error}') from error


def of_text(text: str, name: str) -> Contract:
    """A contract from YAML. name: of where it comes from, for messages. Raises ContractError."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(f'{name} is not YAML: {" ".join(str(error).split())}') from error
    if not isinstance(values, dict):
        raise ContractError(f'{name} is no contract: write robot_type, fps, observations, …')
    return parse({key: v for key, v in values.items() if not str(key).startswith(EXTENSION)}, name)


def parse(values: dict, name: str) -> Contract:
    """A contract from what a YAML holds. name: of the file, for messages. Raises ContractError."""
    try:
        return Contract.model_validate(values)
    except ValidationError as error:
        problems = [f'{name}: {line}' for line in _problems(error)]
        more = f'\n… and {len(problems) - SHOWN} more' if len(problems) > SHOWN else ''
        raise ContractError('\n'.join(problems[:SHOWN]) + more) from error


def to_text(contract: Contract) -> str:
    """A contract as YAML: what `of_text` reads back as the same contract."""
    values = contract.model_dump(mode='json', exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        location = [part for part in problem['loc'] if part not in ('view', 'sources')]
        where = ''.join(f'[{p}]' if isinstance(p, int) else f'.{p}' for p in location).lstrip('.')
        yield _said(where, location, problem)


def _said(where: str, location: Sequence[str | int], problem: Any) -> str:
    kind, message = problem['type'], problem['msg']
    model, field = _field(location)
    if kind == 'extra_forbidden' and model is not None:
        known = list(model.model_fields)
        near = difflib.get_close_matches(str(location[-1]), known, 1)
        hint = f'did you mean {near[0]}?' if near else f'there are {", ".join(known)}'
        return f'{where} is unknown: {hint}'
    wanted = getattr(field, 'description', None)
    if kind == 'missing':
        return f'{where} is missing' + (f': write {wanted}' if wanted else '')
    if kind == 'value_error':
        message = message.removeprefix('Value error, ')
        return f'{where}: {message}' if where else message
    given = '' if isinstance(problem['input'], dict | list) else f' is {problem["input"]!r}'
    return f'{where}{given}: {message[0].lower()}{message[1:]}' + (
        f'; write {wanted}' if wanted else ''
    )


def _field(location: Sequence[str | int]) -> tuple[type[BaseModel] | None, Any]:
    """The section and the field that a location names, as far as both are known."""
    names = [part for part in location if isinstance(part, str)]
    model: type[BaseModel] | None = Contract
    if names[:1] in (['observations'], ['actions'], ['limits']) and len(names) > 1:
        listed = any(isinstance(part, int) for part in location)
        model = {
            'observations': StateSource if listed else View,
            'actions': ActionSource,
            'limits': JointLimits,
        }[names[0]]
        names = names[2:]  # the second is a name that the user chose
    field = None
    for name in names:
        if model is None or name not in model.model_fields:
            return model, None
        field = model.model_fields[name]
        inner = _sections(field.annotation)
        model = inner[0] if len(inner) == 1 else None
    return model, field


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that an annotation holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, '__args__', ())
    return [found for one in inner for found in _sections(one)]
