"""Decode streams: language that is decoded across frames.

A stream is the generation state of OxyGen (section 3.2), S = (KV, token buffer, termination flag).
Its KV is a shared prefix row and the stream's own row of decode KV, so neither creation nor
resumption copies anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from embodied_kv.kv.handle import Lease


@dataclass(frozen=True)
class Query:
    """The question of a stream, and how it is answered.

    ids: tokens appended causally after the shared prefix, at least one. max_tokens: upper bound of
    generated tokens, at least 1. temperature: 0 is greedy; otherwise tokens are sampled with
    `seed`, 64 bits. Raises ValueError for other values.
    """

    text: str
    ids: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not len(self.ids):
            raise ValueError('the question must have at least one token (got none)')
        if self.max_tokens < 1:
            raise ValueError(f'max_tokens must be at least 1 (got {self.max_tokens})')
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f'temperature must be finite and at least 0 (got {self.temperature})')
        if not 0 <= self.seed < 2**64:
            raise ValueError(f'seed must be from 0 to 2**64 - 1 (got {self.seed})')


@dataclass(eq=False)
class DecodeStream:
    """A live stream.

    decode_row: its row of decode KV. tokens: generated so far. reason: why it ended, '' while it
    lives. turn: number of its last turn to be decoded, counted over all streams.
    """

    id: int
    lease: Lease
    decode_row: int
    query: Query
    tokens: list[int] = field(default_factory=list)
    reason: str = ''
    turn: int = 0

    @property
    def is_new(self) -> bool:
        """Return whether its query is not in its decode KV yet."""
        return not self.tokens

    @property
    def extent(self) -> int:
        """Return the tokens in its decode KV between steps; a step appends the newest one."""
        return 0 if self.is_new else len(self.query.ids) + len(self.tokens) - 1
