"""What planning with memory gives back. Knows numbers and words alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from embodied_kv.memory.loader import Timeline
from embodied_kv.memory.segment import Segment


@dataclass(frozen=True)
class Plan:
    """An answer, and what it took.

    whole: whether it ended by itself, not at the longest that an answer may be. segments: ids in
    view, in the order of the prompt. tokens: of the prompt; memory: of its segments. computed,
    loaded: tokens by layer, of which those of head and question are always computed. fresh: units
    whose KV had to be computed first. retries: how often KV went while it was to be loaded. hops:
    of importance, by layer from the second on. Seconds: for fresh units, to the first token, all.
    """

    text: str
    whole: bool
    method: str
    segments: tuple[str, ...]
    tokens: int
    memory: int
    computed: tuple[int, ...]
    loaded: tuple[int, ...]
    fresh: int
    retries: int
    hops: tuple[int, ...]
    seconds_fresh: float
    seconds_first_token: float
    seconds: float
    timeline: Timeline

    @property
    def computed_share(self) -> float:
        """Of all layers' tokens."""
        return sum(self.computed) / (self.tokens * len(self.computed))


@dataclass(frozen=True)
class PlanRequest:
    """A question, its tokens, and what may be in view of it. began: s, when it was asked."""

    began: float
    question: str
    ids: list[int]
    tokens: int
    segments: int | None
    method: str


@dataclass(frozen=True)
class PlanRecord:
    """A plan, token for token: what a capsule knows of the planner.

    units: keys of what was in view, in order. prompt: tokens. answer: those that were said so far;
    over: none follows.
    """

    question: str
    method: str
    units: tuple[str, ...]
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    over: bool = False

    @property
    def asked(self) -> PlanRecord:
        """Before anything was said."""
        return replace(self, answer=(), over=False)

    @property
    def next_position(self) -> int:
        """Of the token that was said last: it is read when the one after it is computed."""
        return len(self.prompt) + len(self.answer) - 1

    def saying(self, token: int, eos: int, most: int) -> PlanRecord:
        """With one token more, or at its end. most: tokens of an answer."""
        if token == eos:
            return replace(self, over=True)
        answer = (*self.answer, token)
        return replace(self, answer=answer, over=len(answer) >= most)


@dataclass(frozen=True)
class RowPlan:
    """A plan whose KV lies in the planner's row, within its first `tokens` tokens.

    absent: tokens of the prompt that each layer lacks; () where none does. chosen: what is kept of
    the prompt was chosen by its question and answer.
    """

    plan: PlanRecord
    tokens: int
    absent: tuple[int, ...] = ()
    chosen: bool = False

    @property
    def read(self) -> int:
        """Tokens of prompt and answer that were read so far, those that are absent with them."""
        return self.tokens + min(self.absent, default=0)

    @property
    def ended_by_eos(self) -> bool:
        """The token that was said last was read, too, and none followed."""
        return self.read > self.plan.next_position

    def saying(self, token: int, eos: int, most: int, tokens: int) -> RowPlan:
        """With one token more, as `PlanRecord.saying`. tokens: that lie in the row then."""
        return replace(self, plan=self.plan.saying(token, eos, most), tokens=tokens)

    def check(self, layers: int, words: int) -> None:
        """Raises ValueError where a planner of so many layers and ids of tokens has none such."""
        if self.absent and len(self.absent) != layers:
            raise ValueError(f'{len(self.absent)} layers, here are {layers}')
        if not all(0 <= token < words for token in (*self.plan.prompt, *self.plan.answer)):
            raise ValueError(f'tokens that are none of the {words} here')

    def fits(self, most: int) -> bool:
        """Whether a planner comes to it whose answers have so many tokens at most."""
        said = len(self.plan.answer)
        if self.ended_by_eos:
            return said <= most
        return said == most if self.plan.over else said < most


@dataclass(frozen=True)
class Match:
    """A segment that was looked for. score: similarity. static: computed with its group."""

    segment: Segment
    score: float
    static: bool


@dataclass(frozen=True)
class MemoryStats:
    """A memory in numbers.

    units: of the present groups; kept: units that have KV, bytes: of these in files. cached_bytes,
    hits, misses: of layers in host memory. transitions, and invalidated: counts by name; tokens
    whose KV changes made useless since the start, until the end of the last step, by 'groups' and
    by what else could have been done.
    """

    step: int
    segments: int
    static: int
    dynamic: int
    units: int
    kept: int
    bytes: int
    cached_bytes: int
    hits: int
    misses: int
    plans: int
    fresh: int
    transitions: Mapping[str, int]
    invalidated: Mapping[str, int]
