"""Traces of robots as JSON Lines: recorded once, replayed as often as needed.

Knows rounds that were executed. Does not know how they are served.

The first line names the format; every other line is one round of a task, in order:

    {"format": "embodied_kv.fleet.trace", "version": 1, "period": 0.0333}
    {"task": "a", "round": 0, "observation_bytes": 45000, "chunk_bytes": 1400,
     "inference": 0.11, "requested": 0, "start": 3.2, "end": 4.1, "horizon": 27}

period: s between actions. inference: s from request to chunk, without load. requested: action of
the chunk before at which it was asked for. start, end: of the execution, s on the robot's clock.
horizon: the execution horizon, actions executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TypeGuard

import numpy as np

FORMAT, VERSION = 'embodied_kv.fleet.trace', 1


class TraceError(ValueError):
    """A line that is no part of a trace, as file:line and the reason."""


@dataclass(frozen=True)
class Round:
    """One line of a trace; fields as the module says."""

    task: str
    round: int
    observation_bytes: int
    chunk_bytes: int
    inference: float
    requested: int
    start: float
    end: float
    horizon: int

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise ValueError(f'task must be a name (got {self.task!r})')
        for field, least in (
            ('round', 0),
            ('observation_bytes', 1),
            ('chunk_bytes', 1),
            ('requested', 0),
            ('horizon', 1),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f'{field} must be a whole number from {least} (got {value!r})')
        for field in ('inference', 'start', 'end'):
            if not _finite(getattr(self, field)):
                raise ValueError(f'{field} must be finite seconds (got {getattr(self, field)!r})')
        if self.inference < 0 or self.end < self.start:
            raise ValueError(
                'inference must be at least 0 and end must not be before start (got '
                f'{self.inference}, {self.start} to {self.end})'
            )


@dataclass(frozen=True)
class Job:
    """A task as it is replayed: the execution horizon of each round, and what a round weighs.

    period: s between actions.
    """

    horizons: tuple[int, ...]
    period: float
    observation_bytes: int
    chunk_bytes: int


class Recorder:
    """Writes a trace line by line; each is on its way to the disk when `add` returns."""

    def __init__(self, path: str | Path, period: float) -> None:
        self._file: IO[str] = Path(path).open('w', buffering=1)
        self._write(dict(format=FORMAT, version=VERSION, period=period))

    def add(self, record: Round) -> None:
        self._write(asdict(record))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: dict) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + '\n')


def read(path: str | Path) -> tuple[float, list[Round]]:
    """Period and rounds of a trace. Raises TraceError with file:line for the first bad line.

    A task's rounds must rise by one from 0.
    """
    period: float | None = None
    rounds: list[Round] = []
    newest: dict[str, int] = {}
    with Path(path).open('rb') as file:
        for number, raw in enumerate(file, 1):
            try:
                line = json.loads(raw.decode())
                if not isinstance(line, dict):
                    raise ValueError('it is no JSON object')
                if period is None:
                    period = _header(line)
                    continue
                record = _round(line)
                due = newest.get(record.task, -1) + 1
                if record.round != due:
                    raise ValueError(f'round {record.round} of {record.task!r}: {due} is due')
            except (ValueError, RecursionError) as error:
                raise TraceError(f'{path}:{number}: {error}') from None
            newest[record.task] = record.round
            rounds.append(record)
    if period is None:
        raise TraceError(f'{path}:1: it is empty')
    return period, rounds


def jobs(period: float, rounds: Iterable[Round]) -> list[Job]:
    """One job per task, in the order in which tasks first appear."""
    tasks: dict[str, list[Round]] = {}
    for record in rounds:
        tasks.setdefault(record.task, []).append(record)
    return [
        Job(
            tuple(record.horizon for record in records),
            period,
            max(record.observation_bytes for record in records),
            max(record.chunk_bytes for record in records),
        )
        for records in tasks.values()
    ]


def sample(jobs: Sequence[Job], count: int, rng: np.random.Generator) -> list[Job]:
    """So many jobs, drawn with replacement."""
    return [jobs[i] for i in rng.integers(len(jobs), size=count)]


def poisson(rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Moments of arrival, s: `rate` tasks a second, float64 [count]."""
    return np.cumsum(rng.exponential(1 / rate, count))


def _header(line: dict) -> float:
    if line.get('format') != FORMAT or line.get('version') != VERSION:
        raise ValueError(f'the first line must name {FORMAT}, version {VERSION}')
    period = line.get('period')
    if line.keys() != {'format', 'version', 'period'} or not _finite(period) or period <= 0:
        raise ValueError(f'period is {period!r}: seconds above 0, and nothing else is named')
    return period


def _round(line: dict) -> Round:
    names = {field.name for field in fields(Round)}
    if line.keys() != names:
        odd = ', '.join(sorted(line.keys() ^ names))
        raise ValueError(f'missing or unknown: {odd}')
    return Round(**line)


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
