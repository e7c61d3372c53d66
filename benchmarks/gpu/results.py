"""The results of a folder: one JSON file, written after every stage, which a later call reads.

Knows with which card, torch and commit a stage was run, and its result. Does not know what a stage
measures. Does not import torch.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = 'results.json'
OK, MISSED, FAILED, ENDED, CUT, SKIPPED = 'ok', 'missed', 'failed', 'ended', 'cut', 'skipped'
SAME = 'card', 'torch', 'dry'  # for all results of one folder
NO_CARD = 'none'


class OtherMachineError(ValueError):
    """The folder has results that cannot be continued here."""


class Results:
    """The results of a folder, by name of the stage. machine: as `machine` returns it.

    Raises OtherMachineError if the folder has results of another card or torch, or of a dry run.
    """

    def __init__(self, folder: Path, machine: dict) -> None:
        self._path, self.machine = folder / FILE, machine
        kept = _read(self._path)
        self.stages: dict[str, dict] = kept.get('stages', {})
        for name in SAME if self.stages else ():
            if kept.get(name) != machine[name]:
                raise OtherMachineError(
                    f'{name} must be that of the results in {folder} (got {machine[name]}, they '
                    f'have {kept.get(name)}); give another folder with --out'
                )

    def done(self, name: str) -> dict | None:
        """Return the result of a stage, or None if it has to run: never begun, or cut short."""
        found = self.stages.get(name)
        return None if found is None or found['status'] == CUT else found

    def keep(self, found: dict) -> None:
        """Add the result of a stage and replace the file, whole or not at all."""
        self.stages[found['stage']] = found | dict(commit=self.machine['commit'])
        part = self._path.with_suffix('.part')
        part.write_text(json.dumps(self.machine | dict(stages=self.stages), indent=1) + '\n')
        part.replace(self._path)


def _read(path: Path) -> dict:
    """Return the content of the file; {} if it is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    stages = found.get('stages') if isinstance(found, dict) else None
    return found if isinstance(stages, dict) else {}


def machine(dry: bool, commit: str = '') -> dict:
    """Return card, torch and commit. commit: the one to use where there is no repository."""
    return dict(dry=dry, card=_card(), torch=_version('torch'), commit=commit or _commit())


def _card() -> str:
    words = ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader']
    return next(_lines(words), NO_CARD)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return 'missing'


def _commit() -> str:
    """Return the commit of the checkout, with a + where files differ from it."""
    git = ['git', '-C', str(ROOT)]
    number = next(_lines([*git, 'rev-parse', '--short=12', 'HEAD']), 'unknown')
    changed = next(_lines([*git, 'status', '--porcelain', '--untracked-files=no']), '')
    return number + '+' * bool(changed)


def _lines(words: list[str]) -> Iterator[str]:
    """Yield the lines that a command prints; none if it fails."""
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    yield from filter(None, (line.strip() for line in said.stdout.splitlines()))
