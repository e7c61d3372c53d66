"""Reads traces of executed rounds, which `embodied_kv.fleet.trace` writes, to replay them."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import TypeGuard

from embodied_kv.fleet.trace import FORMAT, VERSION, Round


class TraceError(ValueError):
    """A line that is not part of a trace; the message is file:line and the reason."""


def read(path: str | Path) -> tuple[float, list[Round]]:
    """Return the period and the rounds of a trace; the rounds of a task must rise by one from 0.

    Raises TraceError with file:line for the first invalid line.
    """
    period: float | None = None
    rounds: list[Round] = []
    newest: dict[str, int] = {}
    with Path(path).open('rb') as file:
        for number, raw in enumerate(file, 1):
            try:
                line = json.loads(raw.decode())
                if not isinstance(line, dict):
                    raise ValueError('the line must be a JSON object')
                if period is None:
                    period = _header(line)
                    continue
                record = _round(line)
                due = newest.get(record.task, -1) + 1
                if record.round != due:
                    raise ValueError(
                        f'round of {record.task!r} must be {due} (got {record.round})'
                    )
            except (ValueError, RecursionError) as error:
                raise TraceError(f'{path}:{number}: {error}') from None
            newest[record.task] = record.round
            rounds.append(record)
    if period is None:
        raise TraceError(f'{path}:1: the file must not be empty')
    return period, rounds


def _header(line: dict) -> float:
    if line.get('format') != FORMAT or line.get('version') != VERSION:
        raise ValueError(f'the first line must name {FORMAT}, version {VERSION}')
    period = line.get('period')
    if line.keys() != {'format', 'version', 'period'} or not _finite(period) or period <= 0:
        raise ValueError(f'period must be above 0 s and the last key (got {period!r})')
    return period


def _round(line: dict) -> Round:
    names = {field.name for field in fields(Round)}
    if line.keys() != names:
        odd = ', '.join(sorted(line.keys() ^ names))
        raise ValueError(f'missing or unknown: {odd}')
    record = Round(**line)
    _check(record)
    return record


def _check(record: Round) -> None:
    if not isinstance(record.task, str) or not record.task:
        raise ValueError(f'task must be a name (got {record.task!r})')
    least = dict(round=0, observation_bytes=1, chunk_bytes=1, requested=0, horizon=1)
    for name, low in least.items():
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f'{name} must be a whole number from {low} (got {value!r})')
    for name in ('inference', 'start', 'end'):
        if not _finite(getattr(record, name)):
            raise ValueError(f'{name} must be finite seconds (got {getattr(record, name)!r})')
    if record.inference < 0 or record.end < record.start:
        raise ValueError(
            'inference must be at least 0 and end must not be before start (got '
            f'{record.inference}, {record.start} to {record.end})'
        )


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
