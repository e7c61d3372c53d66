"""A language stream: a decode that lives across frames.

The paper's generation state S = (KV, token buffer, termination flag), OxyGen section 3.2; the KV
is a shared prefix row and a tail row of the stream's own, so creating or resuming one copies
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from embodied_kv.kv.handle import Lease


@dataclass(frozen=True)
class Query:
    """What a stream answers, and how.

    ids: tokens appended causally after the shared prefix. max_tokens: generated at most.
    temperature: 0 is greedy; otherwise sampled from `seed`.
    """

    text: str
    ids: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(eq=False)
class Stream:
    """One live decode. tokens: generated so far. reason: why it ended, '' while it lives."""

    id: int
    lease: Lease
    tail: int
    query: Query
    tokens: list[int] = field(default_factory=list)
    reason: str = ''

    @property
    def row(self) -> int:
        """Its prefix row; -1 where it reads a compressed copy."""
        return self.lease.row

    @property
    def is_new(self) -> bool:
        """Its query is not in its tail yet."""
        return not self.tokens

    @property
    def extent(self) -> int:
        """Tokens in its tail between two steps; the newest token enters with the next one."""
        return 0 if self.is_new else len(self.query.ids) + len(self.tokens) - 1
