"""One answer to each question about a checkpoint: from its files, from the contract, or none.

Knows how the two are compared, how what is missing or contradictory is said, and how small files
are read. Does not know the questions: each kind of folder asks its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.contract import PARTS, Declared


class Facts:
    """Asks the folder's answer and the contract's; remembers what neither says."""

    def __init__(self, path: Path, declared: Declared | None) -> None:
        self.path = path
        self._declared = declared or Declared()
        self._missing: list[str] = []

    def settle(self, name: str, said: Any = None, needed: bool = True) -> Any:
        """The fact `name` of `Declared`; said: what the files say of it, None if nothing.

        None where it is missing; `check` then refuses, if it is needed. Raises CheckpointError
        where files and contract differ.
        """
        declared = getattr(self._declared, name)
        if None not in (said, declared) and said != declared:
            raise CheckpointError(
                f'{self.path}: checkpoint and contract differ in {name}; '
                'correct the contract, or use the checkpoint that it was written for\n'
                f'  checkpoint: {spell(said)}\n'
                f'  contract:   {spell(declared)}'
            )
        if said is None and declared is None and needed:
            self._missing.append(name)
        return declared if said is None else said

    def modes(self, said: Mapping[str, str], usual: str | None = None) -> dict[str, str]:
        """Of 'state' and 'action', the mode of normalisation; as `settle`.

        usual: the project's, where neither files nor contract say another.
        """
        declared = self._declared.normalization or {}
        for part, mode in said.items():
            if declared.get(part, mode) != mode:
                raise CheckpointError(
                    f'{self.path}: the checkpoint normalises the {part} by {mode}, '
                    f'checkpoint.normalization says {declared[part]}'
                )
        return {part: said.get(part) or declared.get(part) or usual for part in PARTS}

    def views(self, slots: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the checkpoint's views that have a camera, in its order."""
        wanted = self._declared.views
        if wanted is None:
            return slots
        if not set(wanted) <= set(slots):
            raise CheckpointError(
                f'{self.path}: the contract has views that the checkpoint does not know\n'
                f'  checkpoint: {spell(slots)}\n'
                f'  contract:   {spell(wanted)}'
            )
        return tuple(slot for slot in slots if slot in wanted)

    def dims(self, part: str, names: tuple[str, ...] | None, count: int | None) -> int | None:
        """How many dims a part has, by its names, by what the files say, or both."""
        if names is None or count is None or len(names) == count:
            return count if names is None else len(names)
        raise CheckpointError(
            f'{self.path}: the {part} has {count} dims, checkpoint.{part}_names has {len(names)}: '
            f'{spell(names)}'
        )

    def check(self) -> None:
        """Raises CheckpointError that names all that is missing, as keys of the contract."""
        if self._missing:
            raise CheckpointError(
                f'{self.path}: neither its files nor the contract say {", ".join(self._missing)}; '
                f'write {", ".join(f"checkpoint.{name}" for name in self._missing)} in the '
                'contract'
            )


def spell(value: Any) -> str:
    """A value for people: a list by its entries."""
    return ', '.join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def read_json(path: Path) -> dict:
    """Raises CheckpointError where it is missing, or no JSON object."""
    if not path.is_file():
        raise CheckpointError(f'{path} does not exist')
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON: {error}') from error
    if not isinstance(value, dict):
        raise CheckpointError(f'{path} is not a JSON object')
    return value


def refuse_unknown(path: Path, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises CheckpointError that names each setting which is on and which nobody here knows."""
    odd = {name: value for name, value in settings.items() if name not in known and value}
    if odd:
        said = ', '.join(f'{name} = {json.dumps(value)}' for name, value in odd.items())
        raise CheckpointError(f'{path}: not supported: {said}')


def find_tokenizer(folder: Path, names: Sequence[str], advice: str) -> Path:
    """The first of these files that lies in the folder. Raises CheckpointError with the advice."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f'{folder} has no tokenizer: {advice}')
