"""Traces of the rounds that robots executed, as JSON Lines, to be replayed.

The first line names the format; each other line is one round of a task, in order:

    {"format": "embodied_kv.fleet.trace", "version": 1, "period": 0.0333}
    {"task": "a", "round": 0, "observation_bytes": 45000, "chunk_bytes": 1400,
     "inference": 0.11, "requested": 0, "start": 3.2, "end": 4.1, "horizon": 27}

period: s between actions. inference: s from request to chunk, without load. requested: action of
the previous chunk at which the chunk was requested. start, end: of the execution, s on the robot's
clock. horizon: the execution horizon, in actions.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, TypeGuard

from embodied_kv.fleet.protocol import Answer, Request
from embodied_kv.types import ActionChunk

FORMAT, VERSION = 'embodied_kv.fleet.trace', 1
KEPT = 16  # rounds of a task that may still be executed
FLOAT = 4  # bytes


class TraceError(ValueError):
    """A line that is not part of a trace; the message is file:line and the reason."""


@dataclass(frozen=True)
class Round:
    """One line of a trace; the module documents the fields."""

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
        least = dict(round=0, observation_bytes=1, chunk_bytes=1, requested=0, horizon=1)
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f'{name} must be a whole number from {low} (got {value!r})')
        for name in ('inference', 'start', 'end'):
            if not _finite(getattr(self, name)):
                raise ValueError(f'{name} must be finite seconds (got {getattr(self, name)!r})')
        if self.inference < 0 or self.end < self.start:
            raise ValueError(
                'inference must be at least 0 and end must not be before start (got '
                f'{self.inference}, {self.start} to {self.end})'
            )


class Recorder:
    """Writes a trace line by line; a line is passed to the system when `add` returns."""

    def __init__(self, path: str | Path, period: float) -> None:
        with ExitStack() as stack:
            self._file: IO[str] = stack.enter_context(open(path, 'w', buffering=1))
            self._closing = stack.pop_all()
        self._write(dict(format=FORMAT, version=VERSION, period=period))

    def add(self, record: Round) -> None:
        self._write(asdict(record))

    def close(self) -> None:
        self._closing.close()

    def _write(self, line: dict) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + '\n')


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
    return Round(**line)


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(eq=False)
class _Task:
    """The current task of a robot, by the numbers of the robot's rounds.

    `rounds` were answered, `requested` has the action of the previous chunk at which each was
    requested, and `written` counts those in the trace.
    """

    name: str
    rounds: dict[int, dict] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    requested: dict[int, int] = field(default_factory=dict)
    written: int = 0


class TraceWriter(Recorder):
    """Writes the trace of all rounds that a fleet executes.

    A round is written once the request for a later one reports its execution. Rounds that were
    never executed are left out, and the others are numbered without gaps.

    Args:
        path: The file. Raises OSError if it cannot be written.
        period: Seconds between two actions.
    """

    def __init__(self, path: str | Path, period: float) -> None:
        super().__init__(path, period)
        self._period = period
        self._tasks: dict[str, _Task] = {}  # by robot

    def asked(self, request: Request) -> None:
        """Record a new request, and write the round whose execution it reports."""
        task = self._tasks.get(request.robot)
        if task is None or task.name != request.task:
            task = self._tasks[request.robot] = _Task(request.task)
        ran = request.execution
        if ran is None:
            return
        done = task.horizons.get(ran.round, 0) - ran.remaining
        task.requested[request.round] = max(0, done)
        record = task.rounds.pop(ran.round, None)
        if record is not None:
            name = f'{request.robot}/{request.task}'
            ran_actions = max(1, round((ran.end - ran.start) / self._period))
            record['horizon'] = min(record['horizon'], ran_actions)  # the first ones were over
            self.add(Round(name, task.written, start=ran.start, end=ran.end, **record))
            task.written += 1

    def answered(
        self, request: Request, answer: Answer, chunk: ActionChunk | None, seconds: float
    ) -> None:
        """Record an answer, `seconds` after its batch was sent; `chunk` is None for a refusal."""
        task = self._tasks.get(request.robot)
        if task is None or task.name != request.task or chunk is None:
            return
        confidence = 0 if chunk.confidence is None else chunk.confidence.size
        task.horizons[request.round] = answer.execution_horizon
        task.rounds[request.round] = dict(
            observation_bytes=request.observation_bytes,
            chunk_bytes=FLOAT * (chunk.values.size + confidence),
            inference=seconds,
            requested=task.requested.get(request.round, 0),
            horizon=answer.execution_horizon,
        )
        for known in (task.rounds, task.horizons, task.requested):
            for old in [number for number in known if number <= request.round - KEPT]:
                del known[old]

    def forget(self, robot: str) -> None:
        self._tasks.pop(robot, None)
