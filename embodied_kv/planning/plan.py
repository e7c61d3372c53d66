"""Results of planning with memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from embodied_kv.kernels import sampling
from embodied_kv.memory.segment import Segment

PLAN_SECONDS = 60.0  # longest time that a client waits for a plan of a server


@dataclass(frozen=True)
class Plan:
    """An answer of the planner, and its cost."""

    text: str  # the answer
    whole: bool  # whether it ended before the maximum length
    method: str  # the reuse method
    segments: tuple[str, ...]  # ids of the segments in the prompt, in order
    tokens: int  # number of tokens of the prompt
    memory: int  # number of tokens of its segments
    computed: tuple[int, ...]  # tokens that each layer computed, including head and question
    loaded: tuple[int, ...]  # tokens that each layer loaded
    fresh: int  # units whose KV was computed first
    retries: int  # how often KV was lost while it was loaded
    hops: tuple[int, ...]  # hops of importance by layer, from the second on
    seconds_fresh: float  # time for the fresh units
    seconds_first_token: float  # time to the first token
    seconds: float  # time to the last token

    @property
    def computed_share(self) -> float:
        """Return the computed share of the tokens of all layers."""
        return sum(self.computed) / (self.tokens * len(self.computed))


@dataclass(frozen=True)
class PlanRecord:
    """A plan as tokens: the part of the planner's state that a capsule stores.

    `units` has the keys of the units in the prompt, `answer` the tokens so far, and `over` states
    that none follows.
    """

    question: str
    method: str
    units: tuple[str, ...]
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    over: bool = False

    @property
    def asked(self) -> PlanRecord:
        """Return the plan without an answer."""
        return replace(self, answer=(), over=False)

    @property
    def next_position(self) -> int:
        """Return the position of the last token, whose KV the next step computes."""
        return len(self.prompt) + len(self.answer) - 1

    def with_token(self, token: int, stops: Collection[int], most: int) -> PlanRecord:
        """Return the plan with one more token, or its end (one of `stops`, or `most` tokens)."""
        if token in stops:
            return replace(self, over=True)
        answer = (*self.answer, token)
        return replace(self, answer=answer, over=len(answer) >= most)


@dataclass(frozen=True)
class RowPlan:
    """A plan whose KV is in the first `tokens` places of the planner's row."""

    plan: PlanRecord
    tokens: int

    def with_token(self, token: int, stops: Collection[int], most: int, tokens: int) -> RowPlan:
        """Return the plan with one more token, and `tokens` places in use."""
        return replace(self, plan=self.plan.with_token(token, stops, most), tokens=tokens)

    def fits(self, most: int) -> bool:
        """Return whether a planner with a limit of `most` answer tokens reaches this state."""
        said = len(self.plan.answer)
        if self.tokens > self.plan.next_position:  # a stop followed the last token
            return said <= most
        return said == most if self.plan.over else said < most


@dataclass(frozen=True)
class Choice:
    """How the tokens of an answer are chosen.

    temperature: 0 is greedy; otherwise tokens are sampled with `seed`, 64 bits. Raises ValueError
    for other values.
    """

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f'temperature must be finite and at least 0 (got {self.temperature})')
        if not 0 <= self.seed < 2**64:
            raise ValueError(f'seed must be from 0 to 2**64 - 1 (got {self.seed})')

    def share(self, token: int) -> float:
        """Return the random number in [0, 1) that draws token number `token`; 0 if greedy."""
        return sampling.share(self.seed, token) if self.temperature else 0.0


GREEDY = Choice()


@dataclass(frozen=True)
class PlanBranch:
    """A continuation of a plan that a capsule holds.

    question: answered in place of the plan's, from the same memory; '' to continue the answer of
    the plan. The greedy continuation is what the plan would have become.
    """

    question: str = ''
    choice: Choice = GREEDY


@dataclass(frozen=True)
class BranchAnswer:
    """The answer of a branch, and whether it ended before the maximum length."""

    text: str
    whole: bool


@dataclass(frozen=True)
class Match:
    """A segment that a query found, its similarity, and whether its group is static."""

    segment: Segment
    score: float
    static: bool


@dataclass(frozen=True)
class MemoryStats:
    """Statistics of a memory."""

    step: int  # the world step
    segments: int  # number of segments
    static: int  # number of static groups
    dynamic: int  # number of dynamic groups
    units: int  # number of units of the current groups
    kept: int  # number of units with KV
    bytes: int  # size of their files
    cached_bytes: int  # size of the layers in host memory
    hits: int  # layers that were found there
    misses: int  # layers that were read from files
    plans: int  # number of plans
    fresh: int  # number of units that were computed
    transitions: Mapping[str, int]  # transitions of groups, by name
    invalidated: Mapping[str, int]  # tokens that lost their KV, by cause
    chosen: Mapping[str, int]  # number of plans by the methods that `auto` chooses from
    seconds_saved: float  # by plans with KEEP, compared with full recomputation
