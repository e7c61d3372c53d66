"""What a robot and the server of a fleet say to each other, as plain values.

Knows no transport, queue or engine. Whatever comes from outside is checked here, once: a value
that exists is a well-formed one.

Clocks: `stamp`, `start` and `end` are seconds on the robot's own clock, whatever that shows. The
server never subtracts one of its own moments from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from embodied_kv.control.execution_horizon import Policy

NAME_LENGTH = 128
MOST_BYTES = 1 << 28  # of one observation
MOST_ROUNDS = 1 << 63


class ProtocolError(ValueError):
    """A malformed request; the message names the field and shows its value."""


@dataclass(frozen=True)
class LastExecution:
    """The newest execution phase that the robot knows of.

    round: whose chunk it is. start: of its first action. end: of its last one, which lies ahead
    where actions remain. remaining: actions of it that are still to be executed.
    """

    round: int
    start: float
    end: float
    remaining: int = 0

    def __post_init__(self) -> None:
        _whole('execution.round', self.round, 0, MOST_ROUNDS)
        _whole('execution.remaining', self.remaining, 0, 1 << 31)
        _moment('execution.start', self.start)
        _moment('execution.end', self.end)
        if self.end < self.start:
            raise ProtocolError(f'execution.end {self.end} is before its start {self.start}')

    @classmethod
    def running(
        cls, round: int, start: float, stamp: float, remaining: int, period: float
    ) -> LastExecution:
        """Of a robot at moment `stamp`, with actions every `period` seconds (section 3.2.1)."""
        return cls(round, start, stamp + remaining * period, remaining)


@dataclass(frozen=True)
class Request:
    """A robot asks for the next chunk of its task.

    robot: its namespace. task: a name that it never uses again, not even after a restart. round:
    rises by one with every request of the task; a repetition has the same number. stamp: of the
    observation. execution_horizon: how much of the chunk to execute, parsed where the message is
    read (`execution_horizon.parse`). observation_bytes: of what crosses the network with it.
    execution: None in a task's first round. within: s from its receipt in which an answer is of
    use.
    """

    robot: str
    task: str
    round: int
    stamp: float
    execution_horizon: Policy
    observation_bytes: int
    execution: LastExecution | None = None
    within: float = math.inf

    def __post_init__(self) -> None:
        name('robot', self.robot)
        name('task', self.task)
        _whole('round', self.round, 0, MOST_ROUNDS)
        _moment('stamp', self.stamp)
        _whole('observation_bytes', self.observation_bytes, 1, MOST_BYTES)
        if not callable(self.execution_horizon):
            raise ProtocolError(
                f'execution_horizon must be a policy (got {self.execution_horizon!r})'
            )
        if not isinstance(self.within, (int, float)) or not self.within >= 0:
            raise ProtocolError(f'within must be seconds from 0 (got {self.within!r})')
        if self.execution and self.execution.round >= self.round:
            raise ProtocolError(
                f'execution.round {self.execution.round} is not before round {self.round}'
            )


@dataclass(frozen=True, eq=False)
class Answer:
    """The chunk of one round, for its own robot alone.

    execution_horizon: actions to execute, counted from the chunk's start. chunk: what the engine
    made, opaque here.
    """

    robot: str
    task: str
    round: int
    execution_horizon: int
    chunk: object = None


class Verdict(Enum):
    """What became of a request."""

    QUEUED = 'queued'
    DUPLICATE = 'duplicate'  # it waits or is being served: it will be answered once
    ANSWERED = 'answered'  # it was: here is the same answer again
    LATE = 'late'  # the robot has moved on to a newer round or task: nothing happens
    REFUSED = 'refused'


@dataclass(frozen=True, eq=False)
class Receipt:
    """The server's reply to a request; message: why it was refused."""

    verdict: Verdict
    message: str = ''
    answer: Answer | None = None


def name(field: str, value: object) -> None:
    """Refuses what cannot name a robot or task. Raises ProtocolError."""
    if not isinstance(value, str) or not 0 < len(value) <= NAME_LENGTH or not value.isprintable():
        raise ProtocolError(
            f'{field} must be 1 to {NAME_LENGTH} printable characters (got {str(value)[:40]!r})'
        )


def _whole(field: str, value: object, least: int, bound: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < bound:
        raise ProtocolError(f'{field} must be a whole number from {least} (got {value!r})')


def _moment(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ProtocolError(f'{field} must be finite seconds (got {value!r})')
