"""The memory of a robot that its policy server keeps: as `planning.Planning`, by requests.

Knows the endpoint `memory`. Does not know notes or services. Each call waits for the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.memory.segment import MemoryFault, Segment
from embodied_kv.memory.store import Change
from embodied_kv.planning.domain import Draft
from embodied_kv.planning.plan import Match, MemoryStats, Plan
from embodied_kv.serving.remote_policy.answered import answered
from embodied_kv.serving.remote_policy.connection import RemotePolicy

T = TypeVar('T')
SECONDS = 60.0  # that a server has for a plan
SENT = 256  # segments of a request


class RemotePlanning:
    """policy: returns the connection, None while there is none. name: of the memory.

    Each method raises MemoryFault where the server refuses, does not answer, or sends what is no
    such thing.
    """

    def __init__(self, policy: Callable[[], RemotePolicy | None], name: str) -> None:
        self._policy, self._name = policy, name

    @property
    def is_offered(self) -> bool:
        """Return whether there is a memory, as far as is known: a server may offer none."""
        policy = self._policy()
        if policy is None or not policy.is_connected:
            return True
        return policy.extensions is not None and policy.extensions.memory

    @property
    def has_room(self) -> bool:
        """Return whether something can be computed in advance; how much, the server decides."""
        policy = self._policy()
        return policy is not None and policy.is_connected and self.is_offered

    def tasks(self) -> list[tuple[str, int]]:
        """As of `Planning`."""
        return self._read('tasks', {}, lambda reply: [(str(i), int(n)) for i, n in reply['tasks']])

    def upsert(self, *segments: Draft) -> tuple[Change, ...]:
        """As of `Planning`, but by SENT at a time."""
        made: list[Change] = []
        for at in range(0, len(segments), SENT):
            part = [list(segment) for segment in segments[at : at + SENT]]
            made += self._read(
                'upsert', {'segments': part}, lambda reply: [*map(_change, reply['changes'])]
            )
        return tuple(made)

    def remove(self, id: str) -> Change:
        """As of `Planning`."""
        return self._read('remove', {'id': id}, lambda reply: _change(reply['change']))

    def advance(self) -> Sequence[bool]:
        """As of `Planning`: something where a group has changed."""
        if not self.has_room:
            return []
        return self._read('advance', {}, lambda reply: [True] if reply['changed'] else [])

    def query(self, question: str, count: int, kind: str) -> tuple[Match, ...]:
        """As of `Planning`."""
        given = {'question': question, 'count': count, 'kind': kind}
        return self._read('query', given, lambda reply: tuple(map(_match, reply['matches'])))

    def stats(self) -> MemoryStats:
        """As of `Planning`."""
        return self._read('stats', {}, lambda reply: _made(MemoryStats, reply['stats']))

    def warm(self, most: int) -> int:
        """As of `Planning`."""
        return self._read('warm', {'units': most}, lambda reply: int(reply['units']))

    def plan(
        self, question: str, tokens: int | None, segments: int | None, method: str | None
    ) -> Plan:
        """As of `Planning`."""
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
            reply = answered(self._policy(), 'memory', request, SECONDS)
        except CodedError as error:
            raise MemoryFault(str(error), error.code) from error
        try:
            return read(reply)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise MemoryFault(
                f'the reply of the policy server to {verb} cannot be used: {error!r}',
                ErrorCode.UNAVAILABLE,
            ) from error


def _made(kind: type[T], values: Mapping[str, object]) -> T:
    """A dataclass of these values; lists are tuples. Raises TypeError, LookupError."""
    given = {f.name: values[f.name] for f in fields(kind)}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


def _change(value: Mapping) -> Change:
    return Change(_made(Segment, value['segment']), bool(value['changed']), tuple(value['lost']))


def _match(value: Mapping) -> Match:
    segment = _made(Segment, value['segment'])
    return Match(segment, float(value['score']), bool(value['static']))
