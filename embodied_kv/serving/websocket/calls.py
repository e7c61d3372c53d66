"""What a client wants beside its observation: the extensions, read out of a request.

Knows the keys that openpi's protocol has not, and their ranges. Does not know observations, nor
how a wish is met. A client that knows none of this sends none of it, and wants an inference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control import execution_horizon
from embodied_kv.fleet.protocol import LastExecution, ProtocolError
from embodied_kv.serving.websocket.dialect import LARGEST, Refused, numbers, text
from embodied_kv.text import shown

INFER, LOOK, ASK, MEMORY = 'infer', 'look', 'ask', 'memory'
SNAPSHOT, RESTORE, EXPORT, IMPORT, RESET = VERBS = (
    'snapshot',
    'restore',
    'export',
    'import',
    'reset',
)
ENDPOINTS = INFER, LOOK, ASK, MEMORY, *VERBS
ID = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}')
LONGEST = 3600.0  # s of a deadline
ACTIONS = 1000  # of a chunk, at most
TOKENS = 4096
ROUNDS = 2**53  # of a session: as many as a float64 counts
CHARACTERS = 4096  # of a question
SEGMENTS = 256  # of a request
ALL = 2**32 - 1  # segments, as many as a query may ask for
EXECUTION = {'round', 'start', 'end', 'remaining'}  # what a client states of an execution


@dataclass(frozen=True, eq=False)
class Call:
    """One request.

    session: its id, '' for the connection's own. request: what its reply repeats, '' for nothing.
    deadline: s from its receipt, infinite for none.
    steps: Euler steps at most; 0: all. leftover: float64 [n, action_dim], what the robot does from
    its observation on, in the policy's units; None: unknown. delay: how many of these will have
    passed when the chunk takes over. question, max_tokens: of `ask`; about: the session
    whose newest chunk is asked about, '' for this one; evict: whether the answer may end another
    one of that session. name: of a capsule, ''
    for one that is made up, or for the newest. capsule: the bytes of one. memory, verb,
    given: a memory, a verb of it, and what the verb is given. horizon: how much of
    the chunk is executed; None: the client decides. execution: the newest one that the client
    knows of.
    """

    endpoint: str = INFER
    session: str = ''
    request: str = ''
    deadline: float = math.inf
    steps: int = 0
    leftover: NDArray[np.float64] | None = None
    delay: int = 0
    question: str = ''
    about: str = ''
    evict: bool = True
    max_tokens: int = 32
    name: str = ''
    capsule: bytes = b''
    memory: str = ''
    verb: str = ''
    given: Mapping[str, object] = field(default_factory=dict)
    horizon: execution_horizon.Policy | None = None
    execution: LastExecution | None = None


def named(request: Mapping[str, object]) -> Call:
    """Return the endpoint and the id of a request alone. Raises Refused."""
    endpoint = _endpoint('endpoint', request.get('endpoint') or INFER)
    given = request.get('request_id')
    return Call(endpoint, request='' if given is None else _id('request_id', given))


def read(request: Mapping[str, object]) -> Call:
    """The wishes of a request: of its endpoint's keys alone, as others may mean something else.

    Raises Refused, which names the key and what to write.
    """
    found = {key: value for key, value in request.items() if value is not None}
    endpoint = _endpoint('endpoint', found.get('endpoint', INFER))
    keys = OF_ALL | KEYS[endpoint]
    wishes = {name: parse(key, found[key]) for key, (name, parse) in keys.items() if key in found}
    if endpoint == MEMORY:
        if missing := [key for key in ('memory', 'verb') if key not in found]:
            raise Refused(f'{missing[0]} is missing')
        wishes['given'] = _given(wishes['verb'], found.get('given', {}))
    return Call(endpoint, **wishes)


def _endpoint(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in ENDPOINTS:
        raise Refused(f'{key} is {shown(value)!r}: there are {", ".join(ENDPOINTS)}')
    return value


def _id(key: str, value: object) -> str:
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise Refused(f'{key} is {shown(value)!r}: write 1 to 64 letters, digits, dots, _ and -')
    return value


def _seconds(key: str, value: object) -> float:
    found = _number(key, value)
    if not 0 < found <= LONGEST * 1e3:
        raise Refused(f'{key} is {found:g}: write ms, above 0, to {LONGEST * 1e3:g}')
    return found / 1e3


def _leftover(key: str, value: object) -> NDArray[np.float64]:
    found = numbers(key, value)
    if found.ndim != 2 or not 0 < len(found) <= ACTIONS:
        raise Refused(f'{key} is {list(found.shape)}: write actions, [n, numbers of an action]')
    if not (np.abs(found) <= LARGEST).all():
        raise Refused(f'{key} has NaN, infinity or more: send the actions that are planned')
    return found


def _horizon(key: str, value: object) -> execution_horizon.Policy:
    try:
        return execution_horizon.parse(_text(key, value))
    except ValueError as error:
        raise Refused(f'{key}: {error}') from error


def _execution(key: str, value: object) -> LastExecution:
    if not isinstance(value, Mapping) or value.keys() != EXECUTION:
        raise Refused(f'{key} must be a map of {", ".join(sorted(EXECUTION))}')
    whole = _count(0, ROUNDS)
    try:
        return LastExecution(
            round=whole(f'{key}.round', value['round']),
            start=_number(f'{key}.start', value['start']),
            end=_number(f'{key}.end', value['end']),
            remaining=_count(0, ACTIONS)(f'{key}.remaining', value['remaining']),
        )
    except ProtocolError as error:
        raise Refused(str(error)) from error


def _count(least: int, most: int) -> Callable[[str, object], int]:
    def parse(key: str, value: object) -> int:
        found = _number(key, value)
        if not least <= found <= most or not found.is_integer():
            raise Refused(f'{key} is {found:g}: write a whole number from {least} to {most}')
        return int(found)

    return parse


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise Refused(f'{key} must be text of at most {CHARACTERS} characters')
    return text(key, value, CHARACTERS)


def _verb(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in GIVEN:
        raise Refused(f'{key} is {shown(value)!r}: there are {", ".join(GIVEN)}')
    return value


def _given(verb: str, given: object) -> dict[str, object]:
    """What a verb of a memory is given: all of its keys, and no others."""
    known = GIVEN[verb]
    if not isinstance(given, Mapping) or given.keys() != known.keys():
        raise Refused(f'given must be a map of {", ".join(known) or "nothing"} for {verb}')
    return {key: parse(f'given.{key}', given[key]) for key, parse in known.items()}


def _segments(key: str, value: object) -> list[tuple[str, ...]]:
    is_list = isinstance(value, list) and 0 < len(value) <= SEGMENTS
    if not is_list or not all(isinstance(one, list) and len(one) == 3 for one in value):
        raise Refused(f'{key} must be a list of 1 to {SEGMENTS} times [id, kind, text]')
    return [tuple(_text(key, part) for part in one) for one in value]


def _capsule(key: str, value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise Refused(f'{key} must be the bytes that `export` returned')
    return value


def _truth(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused(f'{key} must be true or false')
    return value


def _number(key: str, value: object) -> float:
    found = numbers(key, value)
    if found.shape != (1,):
        raise Refused(f'{key} is {list(found.shape)}: write one number')
    return float(found[0])


OF_ALL = {'session_id': ('session', _id), 'request_id': ('request', _id)}
NAME = {'name': ('name', _text)}
KEYS = {  # of each endpoint's request: the field of a Call, and what reads it
    INFER: {
        'deadline_ms': ('deadline', _seconds),
        'euler_steps': ('steps', _count(1, 50)),
        'leftover': ('leftover', _leftover),
        'leftover_delay': ('delay', _count(0, ACTIONS)),
        'execution_horizon': ('horizon', _horizon),
        'execution': ('execution', _execution),
    },
    LOOK: {},
    MEMORY: {'memory': ('memory', _id), 'verb': ('verb', _verb)},
    ASK: {
        'question': ('question', _text),
        'about': ('about', _id),
        'evict': ('evict', _truth),
        'max_tokens': ('max_tokens', _count(1, TOKENS)),
    },
    SNAPSHOT: NAME,
    RESTORE: NAME,
    EXPORT: NAME,
    IMPORT: NAME | {'capsule': ('capsule', _capsule)},
    RESET: {},
}
GIVEN = {  # of each verb of a memory: its keys, and what reads them
    'upsert': {'segments': _segments},
    'remove': {'id': _text},
    'query': {'question': _text, 'count': _count(0, ALL), 'kind': _text},
    'plan': {
        'question': _text,
        'tokens': _count(0, ALL),
        'count': _count(0, ALL),
        'method': _text,
    },
    'stats': {},
    'advance': {},
    'warm': {'units': _count(0, 1000)},
    'tasks': {},
}
