"""Traces of the rounds that robots executed, as JSON Lines.

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
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from embodied_kv.fleet.protocol import Answer, Request
from embodied_kv.types import ActionChunk

FORMAT, VERSION = 'embodied_kv.fleet.trace', 1
KEPT = 16  # rounds of a task that may still be executed
FLOAT = 4  # bytes


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


@dataclass(eq=False)
class _Task:
    """The current task of a robot, by the numbers of the robot's rounds.

    `rounds` has the answered rounds, `horizons` their execution horizons, `requested` the action
    of the previous chunk at which each was requested. `written` counts the rounds in the trace.
    """

    name: str
    rounds: dict[int, dict] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    requested: dict[int, int] = field(default_factory=dict)
    written: int = 0


class TraceWriter:
    """Writes the trace of all rounds that a fleet executes, line by line.

    A line has been passed to the operating system when `add` returns.

    A round is written once the request for a later one reports its execution. Rounds that were
    never executed are left out, and the others are numbered without gaps.

    Args:
        path: The file. Raises OSError if it cannot be written.
        period: Seconds between two actions.
    """

    def __init__(self, path: str | Path, period: float) -> None:
        self._period = period
        self._tasks: dict[str, _Task] = {}  # by robot
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
            record['horizon'] = min(record['horizon'], ran_actions)  # the first were past
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
