"""The facts of the engine's part of a capsule, checked before any of them is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeGuard, cast

from embodied_kv.capsule.capsule import CapsuleError, Fact, FrozenPart
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.decode_stream import Query
from embodied_kv.model.processing.prompt import RECALL_TOKENS
from embodied_kv.text import is_text, shown

INT64 = 2**63


class RowFacts(TypedDict):
    """The facts of a row. length: logical position behind it."""

    sequence: int
    stamp: int
    length: int
    budgets: list[int] | None  # the tokens of each layer of a compressed row
    scored: int | None  # number of text tokens with scores, if streams wait for compression


class StreamFacts(TypedDict):
    """The facts of a decode stream."""

    row: int
    query: dict[str, Any]  # the fields of a `Query`
    tokens: list[int]
    said: int


class SessionFacts(TypedDict):
    """The facts of the engine's part."""

    rows: list[RowFacts]
    current: int | None  # the row of the newest frame
    action: int | None  # the compressed row that actions read
    streams: list[StreamFacts]
    keep_ratio: float


def read(frozen: FrozenPart) -> SessionFacts:
    """Return the facts of a part that `check` has accepted."""
    return cast(SessionFacts, frozen.facts)


@dataclass(frozen=True)
class Bounds:
    """Vocabulary size, maximum tokens of a row, and layers of a compressed row."""

    vocabulary: int
    tokens: int
    layers: int


def check(facts: Fact, bounds: Bounds) -> None:
    """Raise CapsuleError that names the first fact that no session of this engine can have."""
    whole = _keys(facts, 'session', SessionFacts)
    ratio = whole['keep_ratio']
    _require(_is_number(ratio) and 0 < ratio <= 1, 'keep_ratio', 'above 0, at most 1', ratio)
    rows = _list(whole['rows'], 'rows')
    compressed = [_check_row(row, f'rows[{i}]', bounds) for i, row in enumerate(rows)]
    for name, is_copy in (('current', False), ('action', True)):
        if whole[name] is not None:
            number = _whole(whole[name], name, 0, len(rows) - 1)
            kind = 'a compressed row' if is_copy else 'a whole row'
            _require(compressed[number] == is_copy, name, kind, number)
    if whole['action'] is not None:
        _require(whole['current'] is not None, 'current', 'a row where action is one', None)
    for i, stream in enumerate(_list(whole['streams'], 'streams')):
        _check_stream(stream, f'streams[{i}]', len(rows), bounds)


def _check_row(row: Fact, name: str, bounds: Bounds) -> bool:
    """Check a row; return whether it is compressed."""
    row = _keys(row, name, RowFacts)
    for one in ('sequence', 'stamp'):
        _whole(row[one], f'{name}.{one}', -INT64, INT64 - 1)
    recalled = 0 if row['budgets'] is None else RECALL_TOKENS  # of a copy
    _whole(row['length'], f'{name}.length', 1, bounds.tokens + recalled)
    if row['scored'] is not None:
        _whole(row['scored'], f'{name}.scored', 1, bounds.tokens)
    if row['budgets'] is not None:
        budgets = _list(row['budgets'], f'{name}.budgets')
        layers = f'of {bounds.layers} layers'
        _require(len(budgets) == bounds.layers, f'{name}.budgets', layers, len(budgets))
        for budget in budgets:
            # The tensors have as many tokens. Attention over none would end the process.
            _whole(budget, f'{name}.budgets', 1, INT64 - 1)
    return row['budgets'] is not None


def _check_stream(stream: Fact, name: str, rows: int, bounds: Bounds) -> None:
    stream = _keys(stream, name, StreamFacts)
    _whole(stream['row'], f'{name}.row', 0, rows - 1)
    of_query = f'{name}.query'
    query = _keys(stream['query'], of_query, Query)
    _require(is_text(query['text']), f'{of_query}.text', 'text', query['text'])
    ids = _tokens(query['ids'], f'{of_query}.ids', bounds)
    _require(bool(ids), f'{of_query}.ids', 'at least one token', ids)
    most = _whole(query['max_tokens'], f'{of_query}.max_tokens', 1, INT64 - 1)
    heat = query['temperature']
    fits = _is_number(heat) and 0 <= heat < 2**100
    _require(fits, f'{of_query}.temperature', 'a number from 0 to 2**100', heat)
    _whole(query['seed'], f'{of_query}.seed', 0, 2**64 - 1)
    tokens = _tokens(stream['tokens'], f'{name}.tokens', bounds)
    fewer = f'fewer than max_tokens {most}'
    _require(len(tokens) < most, f'{name}.tokens', fewer, f'{len(tokens)} of them')
    _whole(stream['said'], f'{name}.said', 0, len(tokens))


def _keys(value: Fact, name: str, kind: type) -> Mapping[str, Fact]:
    """Return an object with the fields of a kind."""
    _require(isinstance(value, dict), name, 'an object', value)
    value, keys = cast(dict[str, Fact], value), kind.__annotations__
    _require(value.keys() == keys.keys(), f'the names in {name}', ', '.join(keys), [*value])
    return value


def _list(value: Fact, name: str) -> list[Fact]:
    _require(isinstance(value, list), name, 'a list', value)
    return cast(list[Fact], value)


def _whole(value: Fact, name: str, low: int, high: int) -> int:
    fits = type(value) is int and low <= value <= high
    _require(fits, name, f'a whole number from {low} to {high}', value)
    return cast(int, value)


def _tokens(value: Fact, name: str, bounds: Bounds) -> list[int]:
    return [_whole(token, name, 0, bounds.vocabulary - 1) for token in _list(value, name)]


def _is_number(value: Fact) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, requirement: str, found: object) -> None:
    if not holds:
        raise CapsuleError(
            f'the capsule is damaged: {name} must be {requirement} (got {shown(found)}); drop it '
            'and take a new one',
            ErrorCode.DAMAGED,
        )
