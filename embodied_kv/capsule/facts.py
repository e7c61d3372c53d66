"""Facts of a capsule: plain values, and their bytes.

Encoding and decoding run as Python code, token by token, because one call into the JSON library
holds the interpreter's global lock until it returns, which would delay an action that is due.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from json import scanner
from typing import Any

from embodied_kv.errors import CodedError

# What JSON can express: every sequence but a string is a list, every mapping a dict.
Fact = None | bool | int | float | str | Sequence['Fact'] | Mapping[str, 'Fact']
MAX_FACTS = 2**23  # bytes of one capsule
PIECE = 1024  # tokens joined by one call


class CapsuleError(CodedError):
    """A capsule that cannot be made, stored or used; the message is for the user."""


def facts_of(value: Any) -> dict[str, Fact]:
    """Return the fields of a dataclass as facts: lists for tuples, dicts for dataclasses."""
    return {name: _fact(one) for name, one in asdict(value).items()}


def _fact(value: Any) -> Fact:
    if isinstance(value, dict):
        return {name: _fact(one) for name, one in value.items()}
    return [_fact(one) for one in value] if isinstance(value, list | tuple) else value


def encode(name: str, facts: Mapping[str, Fact]) -> bytes:
    """Return the facts of the capsule `name` as JSON.

    Raises CapsuleError for a fact that JSON would change, and for more than MAX_FACTS bytes.
    """
    pieces, size, tokens = [], 0, json.JSONEncoder().iterencode(dict(facts))
    try:
        for part, fact in facts.items():
            if not (isinstance(part, str) and _comes_back(fact)):
                raise CapsuleError(
                    f'capsule {name}: the facts of {part} do not come back from JSON as they are; '
                    'use None, bool, int, finite float, str, list and dict with str keys'
                )
        while piece := ''.join(islice(tokens, PIECE)).encode():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_FACTS:
                raise CapsuleError(
                    f'the facts of capsule {name} must take at most {MAX_FACTS} bytes (got more); '
                    'large facts should be tensors'
                )
    except RecursionError as error:
        raise CapsuleError(f'the facts of capsule {name} are nested too deeply') from error
    return b''.join(pieces)


def decode(data: bytes) -> dict[str, Fact]:
    """Return encoded facts. Raises ValueError or RecursionError for other bytes."""
    facts = _Decoder().decode(data.decode())
    if not isinstance(facts, dict):
        raise ValueError('the facts must be a JSON object')
    return facts


class _Decoder(json.JSONDecoder):
    """A JSON decoder with the scanner that is written in Python."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_refuse)
        # The type stubs lack it.
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _refuse(constant: str) -> None:
    raise ValueError(f'a fact must be finite (got {constant})')


def _comes_back(fact: object) -> bool:
    if isinstance(fact, dict):
        return all(isinstance(name, str) and _comes_back(one) for name, one in fact.items())
    if isinstance(fact, list):
        return all(map(_comes_back, fact))
    if isinstance(fact, float):
        return math.isfinite(fact)
    return fact is None or isinstance(fact, bool | int | str)
