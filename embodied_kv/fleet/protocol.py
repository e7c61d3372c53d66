"""The messages between a robot and the server of a fleet, as plain values.

Each value is checked when it is created.

Clocks: `stamp`, `start` and `end` are seconds on the robot's own clock. The server never computes
the difference between one of its own moments and one of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from embodied_kv.control.execution_horizon import Policy

NAME_LENGTH = 160  # a key's name, a session's name and a separator fit
MOST_BYTES = 1 << 28  # of one observation
MOST_ROUNDS = 1 << 63


class ProtocolError(ValueError):
    """A malformed request; the message names the field and its value."""


@dataclass(frozen=True)
class LastExecution:
    """The newest execution that the robot knows of (Kairos, section 3.2.1).

    `round` is the round of the chunk, `start` the start of its first action, and `end` the end of
    its last action, which lies in the future while `remaining` actions are not yet executed.
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
            raise ProtocolError(
                f'execution.end must not be before execution.start (got {self.end} and '
                f'{self.start})'
            )

    @classmethod
    def running(
        cls, round: int, start: float, stamp: float, remaining: int, period: float
    ) -> LastExecution:
        """Return the execution at moment `stamp`, one action per `period` s."""
        return cls(round, start, stamp + remaining * period, remaining)


@dataclass(frozen=True)
class Request:
    """A request of a robot for the next chunk of its task.

    Attributes:
        robot: The name of the robot.
        task: A name that the robot never uses again, not even after a restart.
        round: Rises by one with each request of the task; a repeated request has the same number.
        stamp: Moment of the observation.
        execution_horizon: How much of the chunk is executed, as `execution_horizon.parse` returns.
        observation_bytes: Size of the data that crosses the network with the request.
        execution: The newest execution; None in the first round of a task.
        within: Time (s) after its receipt in which an answer is useful.
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
        _name('robot', self.robot)
        _name('task', self.task)
        _whole('round', self.round, 0, MOST_ROUNDS)
        _moment('stamp', self.stamp)
        _whole('observation_bytes', self.observation_bytes, 1, MOST_BYTES)
        if not callable(self.execution_horizon):
            raise ProtocolError(
                f'execution_horizon must be a policy (got {self.execution_horizon!r})'
            )
        if not isinstance(self.within, (int, float)) or not self.within >= 0:
            raise ProtocolError(f'within must be at least 0 s (got {self.within!r})')
        if self.execution and self.execution.round >= self.round:
            raise ProtocolError(
                f'execution.round must be before round {self.round} (got {self.execution.round})'
            )


@dataclass(frozen=True, eq=False)
class Answer:
    """The chunk of one round; the robot executes its first `execution_horizon` actions."""

    robot: str
    task: str
    round: int
    execution_horizon: int
    chunk: Any = None  # the result of the engine, opaque here


class Verdict(Enum):
    """The outcome of a request."""

    QUEUED = 'queued'
    DUPLICATE = 'duplicate'  # it waits or is being served, and will be answered once
    ANSWERED = 'answered'  # with the same answer as before, for a repeated request
    LATE = 'late'  # the robot has moved on to a newer round or task; no effect
    REFUSED = 'refused'


@dataclass(frozen=True, eq=False)
class Receipt:
    """The reply of the server to a request, with the reason of a refusal as `message`."""

    verdict: Verdict
    message: str = ''
    answer: Answer | None = None


def _name(field: str, value: object) -> None:
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
