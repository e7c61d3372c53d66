"""Read a contract from a file; errors name the file, the field and what to write."""

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
SHOWN = 6  # problems of one error message
ROSETTA = {'robot_interface', 'align', 'apply', 'tasks', 'teleop', 'adjunct', 'rewards', 'signals'}
IMPORT = 'python -m embodied_kv.contracts.import'  # converts contracts of rosetta
EXTENSION = 'x-'  # prefix of keys for other programs and for YAML anchors


class ContractError(ValueError):
    """Raised for a contract that cannot be used."""


def shipped() -> tuple[str, ...]:
    """Return the names of the contracts that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob('*.yaml')))


def load(contract: str | Path) -> Contract:
    """Return a shipped contract by name, or that of a file by path. Raises ContractError."""
    path = SHIPPED / f'{contract}.yaml' if str(contract) in shipped() else Path(contract)
    path = path.expanduser()
    if not path.is_file():
        raise ContractError(
            f'contract must be a file or one of {", ".join(shipped())} (got {str(contract)!r})'
        )
    try:
        return of_text(path.read_text(encoding='utf-8'), str(path))
    except UnicodeDecodeError as error:
        raise ContractError(f'{path} must be YAML (got {error})') from error


def read_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text. name: its source, for errors. Raises ContractError."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(f'{name} must be YAML (got {" ".join(str(error).split())})') from error


def of_text(text: str, name: str) -> Contract:
    """Return a contract from YAML. name: as in `read_yaml`. Raises ContractError."""
    values = read_yaml(text, name)
    if not isinstance(values, dict):
        raise ContractError(f'{name} must be a map with robot_type, fps, observations, …')
    return parse({key: v for key, v in values.items() if not str(key).startswith(EXTENSION)}, name)


def parse(values: dict, name: str) -> Contract:
    """Return a contract from the values of YAML. name: as in `read_yaml`. Raises ContractError."""
    try:
        return Contract.model_validate(values)
    except ValidationError as error:
        problems = [f'{name}: {line}' for line in _problems(error)]
        more = f'\n… and {len(problems) - SHOWN} more' if len(problems) > SHOWN else ''
        unknown = {p['loc'][-1] for p in error.errors() if p['type'] == 'extra_forbidden'}
        if theirs := ', '.join(sorted(ROSETTA.intersection(map(str, unknown)))):
            more += f'\n{name}: {theirs} are keys of rosetta: convert it with {IMPORT} {name}'
        raise ContractError('\n'.join(problems[:SHOWN]) + more) from error


def to_text(contract: Contract) -> str:
    """Return a contract as YAML, from which `of_text` reads an equal contract."""
    values = contract.model_dump(mode='json', exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        location = [part for part in problem['loc'] if part not in ('view', 'sources')]
        where = ''.join(f'[{p}]' if isinstance(p, int) else f'.{p}' for p in location).lstrip('.')
        yield _line(where, location, problem)


def _line(where: str, location: Sequence[str | int], problem: Any) -> str:
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
    """Return the section and the field of a location; None if unknown."""
    names = [part for part in location if isinstance(part, str)]
    model: type[BaseModel] | None = Contract
    if names[:1] in (['observations'], ['actions'], ['limits']) and len(names) > 1:
        listed = any(isinstance(part, int) for part in location)
        model = {
            'observations': StateSource if listed else View,
            'actions': ActionSource,
            'limits': JointLimits,
        }[names[0]]
        names = names[2:]  # the user chose the second name
    field = None
    for name in names:
        if model is None or name not in model.model_fields:
            return model, None
        field = model.model_fields[name]
        inner = _sections(field.annotation)
        model = inner[0] if len(inner) == 1 else None
    return model, field


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, '__args__', ())
    return [found for one in inner for found in _sections(one)]
