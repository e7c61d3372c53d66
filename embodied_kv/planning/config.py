"""The numbers of planning with memory. Does not know torch, files or ROS."""

from __future__ import annotations

from dataclasses import dataclass, field

from embodied_kv.memory.groups import Grouping
from embodied_kv.memory.importance import named_propagation
from embodied_kv.memory.loader import POLICIES
from embodied_kv.memory.schedule import SCHEDULES

MIB = 2**20
GRANULARITIES = ('token', 'segment')


def _field(default: object, help: str, **more: object) -> object:
    return field(default=default, metadata=dict(help=help, when='configure', **more))


@dataclass(frozen=True)
class PlanningConfig:
    """How much memory a plan has in view, and how much of that it computes again.

    Each field is also a ROS parameter of the memory node. Raises ValueError for what cannot be.
    """

    tokens: int = _field(
        1024, 'Most tokens of memory in a prompt; also of one segment', range=(1, 1_000_000)
    )
    segments: int = _field(
        0,
        'No further unit is taken once so many segments are in view; 0: as fit',
        range=(0, 1_000_000),
    )
    method: str = _field(
        'keep', 'Way of reuse: keep, full, prefix, full_reuse, cacheblend or epic'
    )
    recompute_ratio: float = _field(
        0.4,
        'Share of memory that is computed again, mean over the layers: keep, cacheblend',
        range=(0.0, 1.0),
        old='average',
    )
    recompute_schedule: str = _field(
        'even',
        'How that share goes over the layers behind the first: even, gradual (from 1.5 to 0.5 of '
        'the even one) or falling (geometric): keep, cacheblend',
    )
    granularity: str = _field(
        'token', 'What is chosen to be computed again: token or segment: cacheblend'
    )
    hops: int = _field(8, 'Propagations of importance at most: keep', range=(0, 1000))
    restart: float = _field(
        0.5,
        'Share of the first scores that each hop keeps; 0 is the paper: keep',
        range=(0.0, 1.0),
    )
    propagation: str = _field(
        'directed',
        'How a hop reads attention between segments: directed (the paper), diagonal (to itself, '
        'too), symmetric, or accumulated (symmetric, hops are added up): keep',
    )
    scoring_tokens: int = _field(
        16,
        'Tokens of a segment that stand for what it attends to; 0 is all, the paper: keep',
        range=(0, 10_000),
        old='looked',
    )
    epic_tokens: int = _field(
        4, 'First tokens of each segment that are computed again: epic', range=(1, 10_000)
    )
    load_policy: str = _field(
        'balanced', 'How far ahead KV is loaded: separate, next_layer or balanced', old='policy'
    )
    step_tokens: int = _field(
        256,
        'Tokens of a layer that one step computes; an action waits for one step at most',
        range=(1, 1_000_000),
    )
    cache_mib: int = _field(
        256, 'Most that loaded layers take in host memory, MiB', range=(0, 2**20)
    )
    unit_keep_ratio: float = _field(
        1.0,
        'Share of its tokens that each segment keeps in stored KV; 1 is no compression, and '
        'what is stored in part is computed anew; else what was stored before stays as it is',
        range=(0.01, 1.0),
    )
    unit_compress: str = _field(
        'knorm',
        'What chooses them: knorm, h2o, zipcache, streaming_llm, random or full',
    )
    row_keep_ratio: float = _field(
        1.0,
        'Share of a prompt before its question that stays in the row while the rest of an answer '
        'is said; 1 is no compression',
        range=(0.01, 1.0),
    )
    row_compress_after: int = _field(
        1,
        'Tokens of an answer that choose beside its question what stays of the prompt',
        range=(0, 4),
    )
    stable_steps: int = _field(
        Grouping.stable_steps,
        'A group without a change for so many steps is computed jointly',
        range=(1, 1_000_000),
    )
    similarity: float = _field(
        Grouping.similarity,
        "Least cosine with a group's mean that makes a segment belong to it",
        range=(-1.0, 1.0),
    )
    answer_tokens: int = _field(48, 'Longest answer, tokens', range=(1, 4096))

    def __post_init__(self) -> None:
        least = min(self.tokens, self.answer_tokens, self.epic_tokens, self.step_tokens)
        if least < 1 or self.segments < 0:
            raise ValueError(f'{self}: tokens start at 1, segments at 0')
        if self.load_policy not in POLICIES:
            raise ValueError(f'no policy {self.load_policy!r}; there are: {", ".join(POLICIES)}')
        named_propagation(self.propagation)
        if (name := self.recompute_schedule) not in SCHEDULES:
            raise ValueError(f'no recompute_schedule {name!r}: {", ".join(SCHEDULES)}')
        if self.granularity not in GRANULARITIES:
            names = ', '.join(GRANULARITIES)
            raise ValueError(f'no granularity {self.granularity!r}; there are: {names}')

    @property
    def grouping(self) -> Grouping:
        """A joint unit is no larger than what may be in view."""
        most = min(Grouping.max_tokens, self.tokens)
        return Grouping(self.stable_steps, self.similarity, max_tokens=most)

    @property
    def cache_bytes(self) -> int:
        return self.cache_mib * MIB


@dataclass(frozen=True)
class MemoryParams:
    """Where memory is kept, who plans with it, and what is remembered unasked."""

    folder: str = _field(
        '~/.ros/embodied_kv/memory',
        "Of the memory; a suite with a namespace has a folder of that name in it; '' forgets all "
        'at cleanup',
    )
    disk_mib: int = _field(
        8192,
        "Most that a robot's stored KV takes on the disk, MiB; the least recently used is removed "
        'first and computed again when a plan needs it',
        range=(1, 2**30),
    )
    planner: str = _field('', "Folder of a planner's weights and tokenizer; '' is the contract's")
    discard_foreign_kv: bool = _field(
        False,
        'Where the folder holds KV of another planner, drop that and keep the segments',
        old='renew',
    )
    encoder: str = _field(
        'hashing',
        'Of meaning: hashing, minilm, auto, or a folder of a sentence-transformers model',
    )
    step_seconds: float = _field(
        5.0, 'How long a step of the world is, s; 0: steps do not pass', range=(0.0, 1e6)
    )
    precompute: bool = _field(
        True, 'Compute missing KV before a plan asks for it', when='live', old='ahead'
    )
    task_records: int = _field(
        48, 'Tasks that are remembered, the oldest go; 0: none', range=(0, 100_000)
    )
