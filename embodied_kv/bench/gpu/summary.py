"""The summary of a folder: which card, what each stage says in a line, then every table.

Knows the files that the runner leaves. Does not know what the figures mean: a stage says that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from embodied_kv.bench.gpu import runner
from embodied_kv.bench.gpu.stages import Stage

DRY = '**Dry: tiny dimensions on a CPU. No figure here means anything.**'


def head(stages: Sequence[Stage], folder: Path, dry: bool) -> str:
    """The card, and a line for each stage, whether it was run or not."""
    found = {stage.name: runner.left(stage.name, folder, dry) for stage in stages}
    lines = ['# First light', '', *([DRY, ''] if dry else []), *card(found.get('facts')), '']
    lines += table([_row(stage, found[stage.name]) for stage in stages])
    return '\n'.join(lines) + '\n'


def markdown(stages: Sequence[Stage], folder: Path, dry: bool) -> str:
    """The head, then every table of every stage."""
    lines = []
    for stage in stages:
        figures = (runner.left(stage.name, folder, dry) or {}).get('figures') or {}
        for name, rows in figures.items():
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                lines += ['', f'## {stage.name}: {name}', '', *table(rows)]
    return head(stages, folder, dry) + '\n'.join([*lines, ''])


def card(facts: dict | None) -> list[str]:
    """What the first stage says of the machine, a fact a line."""
    figures = (facts or {}).get('figures') or {}
    said = {**figures.get('card', {}), **figures.get('software', {})}
    return [f'- {name.replace("_", " ")}: {value}' for name, value in said.items()]


def _row(stage: Stage, found: dict | None) -> dict:
    if found is None:
        return dict(stage=stage.name, status='not run', seconds='', says=stage.asks)
    says = found['reason']
    if found['figures']:
        says = '; '.join(filter(None, (says, _said(stage, found['figures']))))
    return dict(
        stage=stage.name, status=found['status'], seconds=found['seconds'], says=says or stage.asks
    )


def _said(stage: Stage, figures: dict) -> str:
    """In a line; figures that were cut short may not be enough for it."""
    try:
        return stage.say(figures)
    except (LookupError, TypeError, ValueError):
        return 'its figures are not whole'


def table(rows: Sequence[Mapping]) -> list[str]:
    """Markdown, with the columns of all rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [
        _line(name.replace('_', ' ') for name in names),
        _line('---' for _ in names),
        *(_line(_cell(row.get(name, '')) for name in names) for row in rows),
    ]


def _line(cells: Iterator[str]) -> str:
    return f'| {" | ".join(cells)} |'


def _cell(value: object) -> str:
    text = f'{value:.4g}' if isinstance(value, float) else str(value)
    return ' '.join(text.replace('|', '/').split())
