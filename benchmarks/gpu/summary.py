"""The summary of results: card, torch and commit, and a line for each stage.

Knows what the runner keeps. Does not know what the figures mean: a stage defines that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.gpu.results import Results
from benchmarks.gpu.stages import Stage

DRY = 'DRY: tiny dimensions on a CPU. No figure here means anything.'
FACTS = 'driver', 'power_limit_w'  # of the card, if the stage `facts` has them


def text(stages: Sequence[Stage], results: Results) -> str:
    """Return card, torch and commit, and a line for each stage, whether it was run or not."""
    machine, lines = results.machine, [DRY] if results.machine['dry'] else []
    facts = (results.stages.get('facts', {}).get('figures') or {}).get('card', {})
    lines += [f'{name}: {machine[name]}' for name in ('card', 'torch', 'commit')]
    lines += [f'{name.replace("_", " ")}: {facts[name]}' for name in FACTS if name in facts]
    return '\n'.join([*lines, '', *map(_line_of(results), stages), ''])


def _line_of(results: Results):
    commit = results.machine['commit']

    def line(stage: Stage) -> str:
        found = results.stages.get(stage.name)
        if found is None:
            return f'{stage.name:18} not run        {stage.asks}'
        says = [found['reason'], _said(stage, found['figures']) if found['figures'] else '']
        if found['commit'] != commit:
            says.append(f'of commit {found["commit"]}')
        said = '; '.join(filter(None, says)) or stage.asks
        return f'{stage.name:18} {found["status"]:7} {found["seconds"]:5.0f} s {said}'

    return line


def _said(stage: Stage, figures: dict) -> str:
    """Return the line of a stage; figures that were cut short may not be enough for it."""
    try:
        return stage.say(figures)
    except (LookupError, TypeError, ValueError):
        return 'its figures are not whole'


def tables(stages: Sequence[Stage], results: Results) -> str:
    """Return every table of every stage, as markdown."""
    lines = []
    for stage in stages:
        figures = results.stages.get(stage.name, {}).get('figures') or {}
        for name, rows in figures.items():
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                lines += ['', f'## {stage.name}: {name}', '', *table(rows)]
    return '\n'.join(lines) or 'no results in out/gpu'


def table(rows: Sequence[Mapping]) -> list[str]:
    """Return markdown, with the columns of all rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [
        _line(name.replace('_', ' ') for name in names),
        _line('---' for _ in names),
        *(_line(_cell(row.get(name, '')) for name in names) for row in rows),
    ]


def _line(cells: Iterator[str]) -> str:
    return f'| {" | ".join(cells)} |'


def _cell(value: object) -> str:
    shown = f'{value:.4g}' if isinstance(value, float) else str(value)
    return ' '.join(shown.replace('|', '/').split())
