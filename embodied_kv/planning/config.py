"""Parameters of memory and of planning with it, which are also ROS parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from embodied_kv.memory.groups import Grouping
from embodied_kv.memory.importance import PROPAGATIONS
from embodied_kv.memory.loader import POLICIES
from embodied_kv.memory.schedule import SCHEDULES
from embodied_kv.memory.segment import check_choice

MIB = 2**20
CHOICES = dict(
    load_policy=POLICIES,
    propagation=PROPAGATIONS,
    recompute_schedule=SCHEDULES,
    granularity=('token', 'segment'),
)


def _field(default: object, help: str, when: str = 'configure', **more: object) -> object:
    return field(default=default, metadata=dict(help=help, when=when, **more))


@dataclass(frozen=True)
class PlanningConfig:
    """The amount of memory in the prompt of a plan, and the share of it that is recomputed."""

    tokens: int = _field(
        1024,
        'Maximum number of tokens of memory in a prompt, and of one segment',
        range=(1, 1_000_000),
    )
    segments: int = _field(
        0,
        'Number of segments in a prompt from which on no further unit is added; 0: no limit',
        range=(0, 1_000_000),
    )
    method: str = _field(
        'keep', 'Reuse method: keep, full, prefix, full_reuse, cacheblend or epic'
    )
    recompute_ratio: float = _field(
        0.4,
        'Share of memory that is recomputed, mean over the layers (methods keep and cacheblend)',
        range=(0.0, 1.0),
        old=('average',),
    )
    recompute_schedule: str = _field(
        'even',
        'Distribution of that share over the layers after the first: even, gradual (from 1.5 to '
        '0.5 of the even share) or falling (geometric) (methods keep and cacheblend)',
    )
    granularity: str = _field(
        'token', 'Whether single tokens or whole segments are recomputed (method cacheblend)'
    )
    hops: int = _field(
        8, 'Maximum number of hops of the importance walk (method keep)', range=(0, 1000)
    )
    restart: float = _field(
        0.5,
        'Restart probability of the importance walk (method keep); 0.0 reproduces the paper',
        range=(0.0, 1.0),
    )
    propagation: str = _field(
        'directed',
        'Attention between segments that a hop follows (method keep): directed (the paper), '
        'diagonal (also to the segment itself), symmetric, or accumulated (symmetric, the scores '
        'of all hops are added)',
    )
    scoring_tokens: int = _field(
        16,
        'Number of tokens per segment whose attention is read (method keep); 0: all, as in the '
        'paper',
        range=(0, 10_000),
        old=('looked',),
    )
    epic_tokens: int = _field(
        4,
        'Number of first tokens of each segment that are recomputed (method epic)',
        range=(1, 10_000),
    )
    load_policy: str = _field(
        'balanced', 'How far ahead KV is loaded: separate, next_layer or balanced', old=('policy',)
    )
    step_tokens: int = _field(
        256,
        'Number of tokens of a layer that one step computes; an action waits for at most one step',
        range=(1, 1_000_000),
    )
    cache_mib: int = _field(
        256, 'Maximum size (MiB) of loaded layers in host memory', range=(0, 2**20)
    )
    unit_keep_ratio: float = _field(
        1.0,
        'Share of its tokens that each segment keeps in stored KV. 1.0 disables compression, and '
        'KV that was stored in part is computed again; at other values older KV stays as it is',
        range=(0.01, 1.0),
    )
    unit_compress: str = _field(
        'knorm',
        'Method that chooses these tokens: knorm, h2o, zipcache, streaming_llm, random or full',
    )
    row_keep_ratio: float = _field(
        1.0,
        'Share of the prompt before the question that stays in the row while the rest of the '
        'answer is decoded; 1.0 disables compression',
        range=(0.01, 1.0),
    )
    row_compress_after: int = _field(
        1,
        'Number of tokens of the answer that, with the question, choose the part of the prompt '
        'that stays',
        range=(0, 4),
    )
    stable_steps: int = _field(
        Grouping.stable_steps,
        'Number of steps without a change after which a group is computed jointly',
        range=(1, 1_000_000),
    )
    similarity: float = _field(
        Grouping.similarity,
        'Minimum cosine similarity between a segment and the mean of its group',
        range=(-1.0, 1.0),
    )
    answer_tokens: int = _field(48, 'Maximum number of tokens of an answer', range=(1, 4096))

    def __post_init__(self) -> None:
        for name, least in dict(
            tokens=1, answer_tokens=1, epic_tokens=1, step_tokens=1, segments=0
        ).items():
            if getattr(self, name) < least:
                raise ValueError(f'{name} must be >= {least} (got {getattr(self, name)})')
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)

    @property
    def grouping(self) -> Grouping:
        """Return the grouping, in which no joint unit is larger than what a prompt may hold."""
        most = min(Grouping.max_tokens, self.tokens)
        return Grouping(self.stable_steps, self.similarity, max_tokens=most)


@dataclass(frozen=True)
class MemoryParams:
    """The location of memory, its planner, and what is recorded automatically."""

    storage_directory: str = _field(
        '~/.ros/embodied_kv/memory',
        'Directory of the memory; a suite with a namespace uses a subdirectory of that name. '
        'Empty: memory is deleted at cleanup',
        old=('folder',),
    )
    disk_mib: int = _field(
        8192,
        'Maximum size (MiB) of the stored KV of a robot; the least recently used KV is removed '
        'first and computed again when a plan needs it',
        range=(1, 2**30),
    )
    planner: str = _field(
        '', "Folder with a planner's weights and tokenizer; empty: the planner of the contract"
    )
    discard_foreign_kv: bool = _field(
        False,
        'Discard KV of another planner in the folder and keep the segments',
        old=('renew',),
    )
    encoder: str = _field(
        'hashing',
        'Text encoder used for retrieval: hashing, minilm, auto, or the folder of a '
        'sentence-transformers model',
    )
    step_seconds: float = _field(
        5.0, 'Duration (s) of a world step; 0: steps do not pass', range=(0.0, 1e6)
    )
    precompute: bool = _field(
        True, 'Compute missing KV before a plan needs it', when='live', old=('ahead',)
    )
    task_records: int = _field(
        48, 'Number of task records that are kept, newest first; 0: none', range=(0, 100_000)
    )
