"""Memory segments, and the units whose KV is computed together.

Source: KEEP, sections 1 (structured memory) and 4.1 (memory of mixed granularity).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from embodied_kv.errors import CodedError

KINDS = ('object', 'place', 'agent', 'task', 'note')
MAX_ID = 128  # characters
MAX_TEXT = 4096


class RobotMemoryError(CodedError):
    """A memory operation that failed; the message is meant for the user."""


@dataclass(frozen=True)
class Segment:
    """A text about one object, place, agent or task.

    Raises:
        RobotMemoryError: A field is not valid.
    """

    id: str  # a printable line
    kind: str  # one of KINDS
    text: str  # printable, with tabs and line breaks allowed
    version: int = 1  # 1, incremented with each change of kind or text
    step: int = 0  # the world step of the last change

    def __post_init__(self) -> None:
        check_id(self.id)
        check_choice(f'kind of segment {self.id!r}', self.kind, KINDS, RobotMemoryError)
        _check(f'text of segment {self.id!r}', self.text, MAX_TEXT, '\n\t')


def check_id(id: str) -> None:
    """Raise RobotMemoryError unless `id` is a valid segment id."""
    _check('segment id', id, MAX_ID, '')


def check_choice(
    name: str, value: object, choices: Iterable[str], error: type[Exception] = ValueError
) -> None:
    """Raise `error` unless the value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise error(f'{name} must be one of {", ".join(choices)} (got {str(value)[:80]!r})')


def _check(name: str, value: str, longest: int, also: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise RobotMemoryError(f'{name} must be text (got {str(value)[:80]!r})')
    if len(value) > longest:
        raise RobotMemoryError(f'{name} must have at most {longest} characters (got {len(value)})')
    if not value.translate(dict.fromkeys(map(ord, also))).isprintable():
        raise RobotMemoryError(f'{name} must be printable (got {value[:80]!r})')


@dataclass(frozen=True)
class Unit:
    """Segments whose KV is computed together; each attends to those before it.

    A static group is one unit, and each segment of a dynamic group is one.
    """

    segments: tuple[Segment, ...]  # in the order in which they are computed; at least one
    group: int = field(default=0, compare=False)  # the number of the group
    score: float = field(default=0.0, compare=False)  # similarity to the question

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError('segments of a unit must not be empty')

    @property
    def key(self) -> str:
        """Return 32 hex digits of the content from which KV is computed: the paper's `memory_id`.

        A changed segment changes the key, so KV that is stored under a key is never out of date.
        """
        content = [(s.id, s.kind, s.text) for s in self.segments]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(segment.id for segment in self.segments)


@dataclass(frozen=True, eq=False)
class UnitKv:
    """The KV of a unit."""

    unit: Unit
    k: Tensor  # [layers, kv_heads, tokens, head_dim], as computed from position 0 on
    v: Tensor  # the same shape and dtype
    lengths: tuple[int, ...]  # tokens of each segment, in order

    def __post_init__(self) -> None:
        k, v = self.k, self.v
        if k.ndim != 4 or not k.numel() or (k.shape, k.dtype) != (v.shape, v.dtype):
            raise ValueError(
                'k and v must both be [layers, kv_heads, tokens, head_dim] of one dtype '
                f'(got {list(k.shape)} {k.dtype} and {list(v.shape)} {v.dtype})'
            )
        if len(self.lengths) != len(self.unit.segments) or sum(self.lengths) != k.shape[2]:
            raise ValueError(
                f'lengths must sum to {k.shape[2]} tokens of {len(self.unit.segments)} segments '
                f'(got {self.lengths})'
            )
