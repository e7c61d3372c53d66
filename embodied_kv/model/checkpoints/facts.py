"""Facts about a checkpoint, from its files and the contract."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_kv.model.files import CheckpointError
from embodied_kv.robots.declared import PARTS, Declared, contract_field


class Facts:
    """Merges the facts of files and contract (`declared`); collects those that neither states."""

    def __init__(self, path: Path, declared: Declared | None) -> None:
        self.path, self.declared = path, declared or Declared()
        self._missing: list[str] = []

    def settle(self, name: str, found: Any = None, needed: bool = True) -> Any:
        """Return the fact `name` of `Declared`; None where it is missing.

        found: the value in the files. `check` refuses a missing fact that is needed. Raises
        CheckpointError where files and contract differ.
        """
        declared = getattr(self.declared, name)
        if None not in (found, declared) and found != declared:
            raise CheckpointError(
                f'{self.path}: checkpoint and contract differ in {name}; correct '
                f'{contract_field(name)} of the contract, or use the checkpoint that it was '
                'written for\n'
                f'  checkpoint: {spell(found)}\n'
                f'  contract:   {spell(declared)}'
            )
        if found is None and declared is None and needed:
            self._missing.append(name)
        return declared if found is None else found

    def modes(self, found: Mapping[str, str], usual: str = '') -> dict[str, str]:
        """Return the mode of normalisation of 'state' and 'action', like `settle`.

        usual: the mode where neither files nor contract state one.
        """
        declared = self.declared.normalization or {}
        for part, mode in found.items():
            if declared.get(part, mode) != mode:
                raise CheckpointError(
                    f'{self.path}: the checkpoint normalises the {part} by {mode}; correct '
                    f'checkpoint.normalization of the contract (got {declared[part]})'
                )
        return {part: found.get(part) or declared.get(part) or usual for part in PARTS}

    def views(
        self, slots: tuple[str, ...], renames: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return the views with a camera, in the order of the checkpoint.

        renames: name of a view in the training data -> its name in the checkpoint.
        """
        wanted = self.declared.views
        if wanted is None:
            return slots
        if not set(wanted) <= set(slots):
            lines = [
                f'{self.path}: the contract has views that the checkpoint does not have; name '
                'each view in observations of the contract as the checkpoint does',
                f'  checkpoint: {spell(slots)}',
                f'  contract:   {spell(wanted)}',
            ]
            if renames:
                pairs = [f'{name} -> {slot}' for name, slot in renames.items()]
                lines.append(f'  rename_map of its preprocessor: {spell(pairs)}')
            raise CheckpointError('\n'.join(lines))
        return tuple(slot for slot in slots if slot in wanted)

    def units(self, part: str, dims: int) -> tuple[float, ...] | float:
        """Return what one SI unit is in the unit of each number; 1.0 if that is unknown."""
        units = getattr(self.declared, f'{part}_units')
        return units if units is not None and len(units) == dims else 1.0

    def dims(self, part: str, count: int) -> int:
        """Return the dims of a part by the files and by the contract, which must agree."""
        declared = self.declared.dims(part)
        if declared in (None, count):
            return count
        names = getattr(self.declared, f'{part}_names')
        listed = f': {spell(names)}' if names else ''
        raise CheckpointError(
            f'{self.path}: the {part} has {count} dims, the contract has {declared}{listed}; '
            f'correct {contract_field(f"{part}_dims")} of the contract, or use the checkpoint '
            'that it was written for'
        )

    def check(self) -> None:
        """Raise CheckpointError that names all missing facts, by the fields of the contract."""
        if self._missing:
            raise CheckpointError(
                f'{self.path}: neither its files nor the contract have '
                f'{", ".join(self._missing)}; write '
                f'{", ".join(map(contract_field, self._missing))} in the contract'
            )


def spell(value: Any) -> str:
    """Return a value as text, a list by its entries."""
    return ', '.join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def refuse_unknown(path: Path, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise CheckpointError that names each unknown setting that is on."""
    odd = {name: value for name, value in settings.items() if name not in known and value}
    if odd:
        listed = ', '.join(f'{name} = {json.dumps(value)}' for name, value in odd.items())
        raise CheckpointError(
            f'{path}: not supported: {listed}; if the actions do not depend on it, remove it from '
            'the file, else this version cannot run the checkpoint'
        )


def find_tokenizer(folder: Path, names: Sequence[str], advice: str) -> Path:
    """Return the first of these files in the folder. Raises CheckpointError with the advice."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f'{folder} has no tokenizer: {advice}')
