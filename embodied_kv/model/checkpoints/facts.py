"""Facts about a checkpoint, from its files and the contract, and the reading of small files."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.declared import PARTS, Declared


class Facts:
    """Merges the facts of files and contract, and collects those that neither states."""

    def __init__(self, path: Path, declared: Declared | None) -> None:
        self.path = path
        self._declared = declared or Declared()
        self._missing: list[str] = []

    def settle(self, name: str, found: Any = None, needed: bool = True) -> Any:
        """Return the fact `name` of `Declared`; None where it is missing.

        found: the value in the files. `check` refuses a missing fact that is needed. Raises
        CheckpointError where files and contract differ.
        """
        declared = getattr(self._declared, name)
        if None not in (found, declared) and found != declared:
            raise CheckpointError(
                f'{self.path}: checkpoint and contract differ in {name}; '
                'correct the contract, or use the checkpoint that it was written for\n'
                f'  checkpoint: {spell(found)}\n'
                f'  contract:   {spell(declared)}'
            )
        if found is None and declared is None and needed:
            self._missing.append(name)
        return declared if found is None else found

    def modes(self, found: Mapping[str, str], usual: str | None = None) -> dict[str, str]:
        """Return the mode of normalisation of 'state' and 'action', like `settle`.

        usual: the mode where neither files nor contract state one.
        """
        declared = self._declared.normalization or {}
        for part, mode in found.items():
            if declared.get(part, mode) != mode:
                raise CheckpointError(
                    f'{self.path}: the checkpoint normalises the {part} by {mode}, '
                    f'checkpoint.normalization of the contract is {declared[part]}'
                )
        return {part: found.get(part) or declared.get(part) or usual for part in PARTS}

    def views(self, slots: tuple[str, ...]) -> tuple[str, ...]:
        """Return the views with a camera, in the order of the checkpoint."""
        wanted = self._declared.views
        if wanted is None:
            return slots
        if not set(wanted) <= set(slots):
            raise CheckpointError(
                f'{self.path}: the contract has views that the checkpoint does not have\n'
                f'  checkpoint: {spell(slots)}\n'
                f'  contract:   {spell(wanted)}'
            )
        return tuple(slot for slot in slots if slot in wanted)

    def dims(self, part: str, names: tuple[str, ...] | None, count: int | None) -> int | None:
        """Return the dims of a part by its names and by the files, which must agree."""
        if names is None or count is None or len(names) == count:
            return count if names is None else len(names)
        raise CheckpointError(
            f'{self.path}: the {part} has {count} dims, checkpoint.{part}_names has {len(names)}: '
            f'{spell(names)}'
        )

    def check(self) -> None:
        """Raise CheckpointError that names all missing facts, as keys of the contract."""
        if self._missing:
            raise CheckpointError(
                f'{self.path}: neither its files nor the contract have '
                f'{", ".join(self._missing)}; '
                f'write {", ".join(f"checkpoint.{name}" for name in self._missing)} in the '
                'contract'
            )


def spell(value: Any) -> str:
    """Return a value as text, a list by its entries."""
    return ', '.join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def read_json(path: Path) -> dict:
    """Return a JSON object. Raises CheckpointError for anything else."""
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
    """Raise CheckpointError that names each unknown setting that is on."""
    odd = {name: value for name, value in settings.items() if name not in known and value}
    if odd:
        listed = ', '.join(f'{name} = {json.dumps(value)}' for name, value in odd.items())
        raise CheckpointError(f'{path}: not supported: {listed}')


def find_tokenizer(folder: Path, names: Sequence[str], advice: str) -> Path:
    """Return the first of these files in the folder. Raises CheckpointError with the advice."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f'{folder} has no tokenizer: {advice}')
