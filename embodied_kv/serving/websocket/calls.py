"""A request of a client: its extensions of openpi's protocol, and the observation for the engine.

A client without extensions sends none of these keys and requests an inference.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control import execution_horizon, rtc
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.guidance import leftover
from embodied_kv.fleet.protocol import LastExecution, ProtocolError
from embodied_kv.serving.batch import TimedObservation
from embodied_kv.serving.websocket.observation_parser import (
    LARGEST,
    PROMPT,
    ParsedObservation,
    RefusedError,
    numbers,
    text,
)
from embodied_kv.text import shown
from embodied_kv.types import Guide

INFER, LOOK, ASK, MEMORY = 'infer', 'look', 'ask', 'memory'
SNAPSHOT, RESTORE, EXPORT, IMPORT, RESET = 'snapshot', 'restore', 'export', 'import', 'reset'
ENDPOINTS = INFER, LOOK, ASK, MEMORY, SNAPSHOT, RESTORE, EXPORT, IMPORT, RESET
ID = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}')
LONGEST = 3600.0  # s of a deadline
ACTIONS = 1000  # maximum of a chunk
TOKENS = 4096
ROUNDS = 2**53  # of a session: as many as a float64 counts exactly
CHARACTERS = 4096  # of a question
SEGMENTS = 256  # of a request
ALL = 2**32 - 1  # maximum number of segments of a query
EXECUTION = {'round', 'start', 'end', 'remaining'}  # fields of a reported execution
Parser = Callable[[str, object], Any]  # of the value of a key
Keys = dict[str, tuple[str, Parser]]  # by key: the field of a Call, and the parser


@dataclass(frozen=True, eq=False)
class Call:
    """One request.

    Attributes:
        endpoint: One of ENDPOINTS.
        session: Id of the session; '' for that of the connection.
        request: Id that the reply repeats; '' for none.
        deadline: Seconds from the receipt; infinity for none.
        steps: Maximum number of Euler steps; 0 for all.
        leftover: float64 [n, action_dim], the actions that the robot executes from its observation
            on, in the policy's units; None if unknown.
        delay: Number of these that will have passed when the chunk takes over.
        question: The question of `ask`.
        about: Session about whose newest frame `ask` asks; '' for this one.
        evict: Whether the answer may end an older one of that session.
        max_tokens: Maximum number of tokens of the answer.
        name: Name of a capsule; '' for a generated name, or for the newest capsule.
        capsule: The bytes of a capsule.
        memory: Name of a memory.
        verb: Operation on the memory.
        given: Arguments of the operation.
        horizon: How much of the chunk is executed; None: the client decides.
        execution: The newest execution that the client reports.
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
    """Return a call with the endpoint and the id of a request only. Raises RefusedError."""
    endpoint = _endpoint('endpoint', request.get('endpoint') or INFER)
    given = request.get('request_id')
    return Call(endpoint, request='' if given is None else _id('request_id', given))


def read(request: Mapping[str, object]) -> Call:
    """Return the call of a request, from the keys of its endpoint; other keys are ignored.

    Raises RefusedError, which names the key and the remedy.
    """
    found = {key: value for key, value in request.items() if value is not None}
    endpoint = _endpoint('endpoint', found.get('endpoint', INFER))
    keys = OF_ALL | KEYS[endpoint]
    wishes = {name: parse(key, found[key]) for key, (name, parse) in keys.items() if key in found}
    if endpoint == MEMORY:
        if missing := [key for key in ('memory', 'verb') if key not in found]:
            raise RefusedError(f'{missing[0]} must be present (got none)')
        wishes['given'] = _given(wishes['verb'], found.get('given', {}))
    return Call(endpoint, **wishes)


def observation(
    engine: Engine,
    parsed: ParsedObservation,
    call: Call,
    robot: str,
    number: int,
    received: float,
    prompt: str,
) -> TimedObservation:
    """Return the observation of a call for the engine. Raises RefusedError.

    Args:
        engine: The engine.
        parsed: The images, state and prompt of the request.
        call: The request.
        robot: Name of the session.
        number: Number of the round.
        received: Moment of the receipt, s, steady clock.
        prompt: Default instruction; without one, only `look` needs no prompt.
    """
    instruction = parsed.prompt or prompt
    if not instruction and call.endpoint != LOOK:
        raise RefusedError(
            f'{PROMPT} must not be empty; send an instruction, or start the server with a default '
            'one: --default_prompt "…", of the node -p default_prompt:="…"'
        )
    c = engine.config
    if call.steps and not c.min_euler_steps <= call.steps <= c.euler_steps:
        raise RefusedError(
            f'euler_steps must be from {c.min_euler_steps} to {c.euler_steps} at this server (got '
            f'{call.steps})'
        )
    if call.deadline < math.inf and not c.time_budget:
        raise RefusedError(
            'deadline_ms must be absent at a server without a time budget; start it with '
            'engine.time_budget: true'
        )
    return TimedObservation(
        images=tuple(parsed.images[view] for view in engine.policy.config.views),
        state=parsed.state,
        instruction=instruction,
        stamp=time.time_ns(),
        deadline=received + call.deadline,
        sequence=number,
        robot=robot,
        guide=_guide(engine, call, parsed.state),
        steps=call.steps,
        horizon=call.horizon,
        execution=call.execution,
    )


def _guide(engine: Engine, call: Call, state: NDArray[np.float64]) -> Guide | None:
    if call.leftover is None:
        if call.delay:
            raise RefusedError(
                'leftover_delay must come with leftover; send the actions that are planned'
            )
        return None
    config, model = engine.config, engine.policy.config
    if config.rtc == 'off':
        raise RefusedError(
            'leftover must be absent where real-time chunking is off; start the server with '
            'engine.rtc: guided'
        )
    if call.leftover.shape[1] != model.action_dim:
        raise RefusedError(
            f'leftover must be [n, {model.action_dim}] (got {list(call.leftover.shape)})'
        )
    known = min(len(call.leftover), model.chunk_size)
    actions = np.full((model.chunk_size, model.action_dim), np.nan)
    actions[:known] = call.leftover[:known]
    if call.delay > (most := min(known, model.chunk_size - 1)):
        raise RefusedError(
            f'leftover_delay must be at most {most} for these {len(call.leftover)} actions and '
            f'chunks of {model.chunk_size} (got {call.delay})'
        )
    end = min(config.horizon(model.chunk_size), known)
    weights = rtc.weights(call.delay, end, model.chunk_size, config.rtc_schedule)
    guide = Guide(actions, call.delay, weights)
    try:
        leftover(guide, engine.policy, state)
    except ValueError as error:
        raise RefusedError(f'leftover: {error}') from error
    return guide


def _one_of(names: Collection[str]) -> Callable[[str, object], str]:
    def parse(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise RefusedError(f'{key} must be one of {", ".join(names)} (got {shown(value)!r})')
        return value

    return parse


def _id(key: str, value: object) -> str:
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise RefusedError(
            f'{key} must be 1 to 64 letters, digits, dots, _ and - (got {shown(value)!r})'
        )
    return value


def _seconds(key: str, value: object) -> float:
    found = _number(key, value)
    if not 0 < found <= LONGEST * 1e3:
        raise RefusedError(f'{key} must be above 0 to {LONGEST * 1e3:g} ms (got {found:g})')
    return found / 1e3


def _leftover(key: str, value: object) -> NDArray[np.float64]:
    found = numbers(key, value)
    if found.ndim != 2 or not 0 < len(found) <= ACTIONS:
        raise RefusedError(
            f'{key} must be [1 to {ACTIONS}, numbers of an action] (got {list(found.shape)})'
        )
    if not (np.abs(found) <= LARGEST).all():
        raise RefusedError(f'{key} must be finite and at most {LARGEST:g}; send planned actions')
    return found


def _horizon(key: str, value: object) -> execution_horizon.Policy:
    try:
        return execution_horizon.parse(_text(key, value))
    except ValueError as error:
        raise RefusedError(f'{key}: {error}') from error


def _execution(key: str, value: object) -> LastExecution:
    if not isinstance(value, Mapping) or value.keys() != EXECUTION:
        raise RefusedError(f'{key} must be a map of {", ".join(sorted(EXECUTION))}')
    try:
        return LastExecution(
            round=_count(0, ROUNDS)(f'{key}.round', value['round']),
            start=_number(f'{key}.start', value['start']),
            end=_number(f'{key}.end', value['end']),
            remaining=_count(0, ACTIONS)(f'{key}.remaining', value['remaining']),
        )
    except ProtocolError as error:
        raise RefusedError(str(error)) from error


def _count(least: int, most: int) -> Callable[[str, object], int]:
    def parse(key: str, value: object) -> int:
        found = _number(key, value)
        if not least <= found <= most or not found.is_integer():
            raise RefusedError(
                f'{key} must be a whole number from {least} to {most} (got {found:g})'
            )
        return int(found)

    return parse


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise RefusedError(f'{key} must be text of at most {CHARACTERS} characters')
    return text(key, value, CHARACTERS)


def _given(verb: str, given: object) -> dict[str, object]:
    known = GIVEN[verb]
    if not isinstance(given, Mapping) or given.keys() != known.keys():
        raise RefusedError(f'given must be a map of {", ".join(known) or "nothing"} for {verb}')
    return {key: parse(f'given.{key}', given[key]) for key, parse in known.items()}


def _segments(key: str, value: object) -> list[tuple[str, ...]]:
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= SEGMENTS
        or not all(isinstance(one, list) and len(one) == 3 for one in value)
    ):
        raise RefusedError(f'{key} must be a list of 1 to {SEGMENTS} times [id, kind, text]')
    return [tuple(_text(key, part) for part in one) for one in value]


def _capsule(key: str, value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise RefusedError(f'{key} must be the bytes that `export` returned')
    return value


def _truth(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(f'{key} must be true or false')
    return value


def _number(key: str, value: object) -> float:
    found = numbers(key, value)
    if found.shape != (1,):
        raise RefusedError(f'{key} must be one number (got {list(found.shape)})')
    return float(found[0])


GIVEN: dict[str, dict[str, Parser]] = {  # by verb of a memory: its arguments and their parsers
    'upsert': {'segments': _segments},
    'remove': {'id': _text},
    'query': {'question': _text, 'count': _count(0, ALL), 'kind': _text},
    'plan': dict(question=_text, tokens=_count(0, ALL), count=_count(0, ALL), method=_text),
    'stats': {},
    'advance': {},
    'warm': {'units': _count(0, 1000)},
    'tasks': {},
}
OF_ALL: Keys = {'session_id': ('session', _id), 'request_id': ('request', _id)}
NAME: Keys = {'name': ('name', _text)}
KEYS: dict[str, Keys] = {  # by endpoint
    INFER: {
        'deadline_ms': ('deadline', _seconds),
        'euler_steps': ('steps', _count(1, 50)),
        'leftover': ('leftover', _leftover),
        'leftover_delay': ('delay', _count(0, ACTIONS)),
        'execution_horizon': ('horizon', _horizon),
        'execution': ('execution', _execution),
    },
    LOOK: {},
    MEMORY: {'memory': ('memory', _id), 'verb': ('verb', _one_of(GIVEN))},
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
_endpoint = _one_of(ENDPOINTS)
