"""The memory of a robot at its policy server, with the interface of `planning.Planning`.

Each method except the properties waits for the server's reply to a request `memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.memory.segment import RobotMemoryError, Segment
from embodied_kv.memory.store import Change
from embodied_kv.planning.domain import Draft
from embodied_kv.planning.plan import PLAN_SECONDS, Match, MemoryStats, Plan
from embodied_kv.serving.remote_policy.connection import RemotePolicy, ask

T = TypeVar('T')
SENT = 256  # segments of one request, at most


class RemotePlanning:
    """A memory by its name; `policy` returns the connection, None while there is none.

    The methods raise RobotMemoryError for a refusal, a missing reply and an invalid reply.
    """

    def __init__(self, policy: Callable[[], RemotePolicy | None], name: str) -> None:
        self._policy, self._name = policy, name

    @property
    def is_offered(self) -> bool:
        """Whether there is a memory; True until the server is known to offer none."""
        policy = self._policy()
        if policy is None or not policy.is_connected:
            return True
        return policy.extensions is not None and policy.extensions.memory

    @property
    def has_room(self) -> bool:
        """Whether KV can be computed in advance; the server decides how much."""
        policy = self._policy()
        return policy is not None and policy.is_connected and self.is_offered

    def tasks(self) -> list[tuple[str, int]]:
        return self._read('tasks', {}, lambda reply: [(str(i), int(n)) for i, n in reply['tasks']])

    def upsert(self, *segments: Draft) -> tuple[Change, ...]:
        """Update segments as `Planning.upsert`, SENT at a time."""
        made: list[Change] = []
        for at in range(0, len(segments), SENT):
            part = [list(segment) for segment in segments[at : at + SENT]]
            made += self._read(
                'upsert', {'segments': part}, lambda reply: [*map(_change, reply['changes'])]
            )
        return tuple(made)

    def remove(self, id: str) -> Change:
        return self._read('remove', {'id': id}, lambda reply: _change(reply['change']))

    def advance(self) -> Sequence[bool]:
        """Return a non-empty list if a group has changed."""
        if not self.has_room:
            return []
        return self._read('advance', {}, lambda reply: [True] if reply['changed'] else [])

    def query(self, question: str, count: int, kind: str) -> tuple[Match, ...]:
        given = {'question': question, 'count': count, 'kind': kind}
        return self._read('query', given, lambda reply: tuple(map(_match, reply['matches'])))

    def stats(self) -> MemoryStats:
        return self._read('stats', {}, lambda reply: _made(MemoryStats, reply['stats']))

    def warm(self, most: int) -> int:
        return self._read('warm', {'units': most}, lambda reply: int(reply['units']))

    def plan(
        self, question: str, tokens: int | None, segments: int | None, method: str | None
    ) -> Plan:
        given = {
            'question': question,
            'tokens': tokens or 0,
            'count': segments or 0,
            'method': method or '',
        }
        return self._read('plan', given, lambda reply: _made(Plan, reply['plan']))

    def _read(self, verb: str, given: Mapping[str, object], read: Callable[[Mapping], T]) -> T:
        request = {'endpoint': 'memory', 'memory': self._name, 'verb': verb, 'given': dict(given)}
        try:
            reply = ask(self._policy(), 'memory', request, PLAN_SECONDS)
        except CodedError as error:
            raise RobotMemoryError(str(error), error.code) from error
        try:
            return read(reply)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RobotMemoryError(
                f'the reply of the policy server to {verb} cannot be used: {error!r}',
                ErrorCode.UNAVAILABLE,
            ) from error


def _made(kind: type[T], values: Mapping[str, object]) -> T:
    """Return a dataclass of these values, with lists as tuples."""
    given = {f.name: values[f.name] for f in fields(cast(Any, kind))}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


def _change(value: Mapping) -> Change:
    return Change(_made(Segment, value['segment']), bool(value['changed']), tuple(value['lost']))


def _match(value: Mapping) -> Match:
    segment = _made(Segment, value['segment'])
    return Match(segment, float(value['score']), bool(value['static']))
