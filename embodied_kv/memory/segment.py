"""A segment of memory.

Knows ids, kinds and text. Does not know tokens, embeddings or files.

Source: KEEP, section 1 (embodied memory is structured: a segment is the state of one object, the
record of one task, and so on).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from torch import Tensor

from embodied_kv.errors import CodedError

KINDS = ('object', 'place', 'agent', 'task', 'note')
MAX_ID = 128  # characters
MAX_TEXT = 4096


class MemoryFault(CodedError):
    """Why memory cannot be kept or used; meant for the user."""


@dataclass(frozen=True)
class Segment:
    """One thing that is remembered.

    version: 1, and one more with each change of kind or text. step: of the world, at the last
    change. Raises MemoryFault for an unknown kind, and for an id or a text that is empty, too long
    or not printable; a text may have tabs and line breaks.
    """

    id: str
    kind: str
    text: str
    version: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        check_id(self.id)
        if self.kind not in KINDS:
            raise MemoryFault(
                f'segment {self.id!r}: no kind {str(self.kind)[:80]!r}; there are: '
                f'{", ".join(KINDS)}'
            )
        _check(f'the text of segment {self.id!r}', self.text, MAX_TEXT, '\n\t')


def check_id(id: str) -> None:
    """Raises MemoryFault for what cannot be an id."""
    _check('a segment id', id, MAX_ID, '')


def _check(what: str, value: str, longest: int, also: str) -> None:
    """also: characters that are fine beside the printable ones."""
    if not isinstance(value, str) or not value.strip():
        raise MemoryFault(f'{what} must be words, not {str(value)[:80]!r}')
    if len(value) > longest:
        raise MemoryFault(f'{what} has {len(value)} characters, at most {longest} are kept')
    if not value.translate(dict.fromkeys(map(ord, also))).isprintable():
        raise MemoryFault(f'{what} has characters that cannot be printed: {value[:80]!r}')


@dataclass(frozen=True)
class Unit:
    """Segments in the order in which their KV is computed, each seeing those before it.

    A static group is a unit as a whole, a segment of a dynamic group is one by itself. group: the
    group it comes from. score: of a retrieval. Raises ValueError for no segments.
    """

    segments: tuple[Segment, ...]
    group: int = field(default=0, compare=False)
    score: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError('a unit needs a segment')

    @property
    def key(self) -> str:
        """32 hex digits from what the KV is computed from: the `memory_id` of the paper.

        Whatever is kept under a key is never out of date: a segment that changes changes it.
        """
        content = [(s.id, s.kind, s.text) for s in self.segments]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(segment.id for segment in self.segments)


@dataclass(frozen=True, eq=False)
class UnitKv:
    """The KV of a unit, to be kept.

    k, v: [layers, kv_heads, tokens, head_dim], one dtype; k as computed from position 0 on.
    lengths: tokens of each segment of the unit, in order.
    """

    unit: Unit
    k: Tensor
    v: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        k, v = self.k, self.v
        if k.ndim != 4 or not k.numel() or (k.shape, k.dtype) != (v.shape, v.dtype):
            raise ValueError(
                f'k {list(k.shape)} {k.dtype} and v {list(v.shape)} {v.dtype} are not both '
                '[layers, kv_heads, tokens, head_dim]'
            )
        if len(self.lengths) != len(self.unit.segments) or sum(self.lengths) != k.shape[2]:
            raise ValueError(
                f'lengths {self.lengths} of {len(self.unit.segments)} segments do not share '
                f'{k.shape[2]} tokens'
            )
