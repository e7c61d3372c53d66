"""Writes down what a fleet executes, round by round, so that it can be replayed.

Knows requests and answers. A round is written once its execution is known, which the request for
a later one tells; rounds that were never executed are left out, and the others are numbered
without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from embodied_kv.fleet.protocol import Answer, Request
from embodied_kv.fleet.trace import Recorder, Round
from embodied_kv.types import ActionChunk

KEPT = 16  # rounds of a task that may still be executed
FLOAT = 4  # bytes


@dataclass(eq=False)
class _Task:
    """What is known of a robot's present task, by the robot's own numbers.

    rounds: what was answered. requested: at which action of the chunk before each was asked for.
    written: how many the trace has.
    """

    name: str
    rounds: dict[int, dict] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    requested: dict[int, int] = field(default_factory=dict)
    written: int = 0


class TraceWriter:
    """A trace file (`fleet.trace`) of everything that is executed.

    period: s between two actions. Raises OSError where it cannot be written.
    """

    def __init__(self, path: str | Path, period: float) -> None:
        self._recorder, self._period = Recorder(path, period), period
        self._tasks: dict[str, _Task] = {}  # by robot

    def asked(self, request: Request) -> None:
        """A request that is new."""
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
            self._recorder.add(Round(name, task.written, start=ran.start, end=ran.end, **record))
            task.written += 1

    def answered(
        self, request: Request, answer: Answer, chunk: ActionChunk | None, seconds: float
    ) -> None:
        """A chunk was delivered, so many seconds after its batch was sent; None: a refusal."""
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
        """The robot is gone; it comes back with another task."""
        self._tasks.pop(robot, None)

    def close(self) -> None:
        """Nothing more is written."""
        self._recorder.close()
