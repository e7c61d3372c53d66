"""Parameters of memory and of planning with it, which are also ROS parameters."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.memory.groups import Grouping
from embodied_kv.parameter import parameter

MIB = 2**20


@dataclass(frozen=True)
class PlanningConfig:
    """The amount of memory in the prompt of a plan, and the share of it that is recomputed."""

    max_context_tokens: int = parameter(
        1024,
        'Maximum number of tokens of memory in a prompt, and of one segment',
        range=(1, 1_000_000),
        old=('tokens',),
    )
    max_context_segments: int = parameter(
        0,
        'Number of segments in a prompt from which on no further unit is added; 0: no limit',
        range=(0, 1_000_000),
        old=('segments',),
    )
    reuse_method: str = parameter(
        'auto',
        'Reuse method: auto, keep, full, prefix or full_reuse; auto: for each plan keep or full, '
        'whichever is faster by the times of earlier plans',
        removed=(
            *('granularity', 'epic_tokens', 'recompute_schedule', 'restart', 'propagation'),
            *('scoring_tokens', 'looked', 'load_policy', 'policy', 'unit_keep_ratio'),
            *('unit_compress', 'row_keep_ratio', 'row_compress_after'),
        ),
        old=('method',),
    )
    recompute_ratio: float = parameter(
        0.4,
        'Share of memory that is recomputed, mean over the layers (method keep)',
        range=(0.0, 1.0),
        old=('average',),
    )
    max_walk_hops: int = parameter(
        8,
        'Maximum number of hops of the importance walk (method keep)',
        range=(0, 1000),
        old=('hops',),
    )
    prefill_step_tokens: int = parameter(
        256,
        'Number of tokens of a layer that one step computes; an action waits for at most one step',
        range=(1, 1_000_000),
        old=('step_tokens',),
    )
    host_cache_mib: int = parameter(
        256,
        'Maximum size (MiB) of loaded layers in host memory',
        range=(0, 2**20),
        old=('cache_mib',),
    )
    group_stable_steps: int = parameter(
        Grouping.stable_steps,
        'Number of steps without a change after which a group is computed jointly',
        range=(1, 1_000_000),
        old=('stable_steps',),
    )
    min_group_similarity: float = parameter(
        Grouping.similarity,
        'Minimum cosine similarity between a segment and the mean of its group',
        range=(-1.0, 1.0),
        old=('similarity',),
    )
    max_answer_tokens: int = parameter(
        48,
        'Maximum number of tokens of an answer',
        range=(1, 4096),
        old=('answer_tokens',),
    )

    def __post_init__(self) -> None:
        for name, least in dict(
            max_context_tokens=1,
            max_answer_tokens=1,
            prefill_step_tokens=1,
            max_context_segments=0,
        ).items():
            if getattr(self, name) < least:
                raise ValueError(f'{name} must be >= {least} (got {getattr(self, name)})')

    @property
    def grouping(self) -> Grouping:
        """Return the grouping, in which no joint unit is larger than what a prompt may hold."""
        most = min(Grouping.max_tokens, self.max_context_tokens)
        return Grouping(self.group_stable_steps, self.min_group_similarity, max_tokens=most)


@dataclass(frozen=True)
class MemoryParams:
    """The location of memory, its planner, and what is recorded automatically."""

    storage_directory: str = parameter(
        '~/.ros/embodied_kv/memory',
        'Directory of the memory; a suite with a namespace uses a subdirectory of that name. '
        'Empty: memory is deleted at cleanup',
        old=('folder',),
    )
    disk_mib: int = parameter(
        8192,
        'Maximum size (MiB) of the stored KV of a robot; the least recently used KV is removed '
        'first and computed again when a plan needs it',
        range=(1, 2**30),
    )
    planner: str = parameter(
        '',
        'Folder with a planner, of this package or of Hugging Face (Gemma, Gemma 3, Qwen 2.5, '
        'Qwen 3, Llama, SmolLM2), or owner/name@revision on the Hugging Face hub; empty: the '
        'planner of the contract',
    )
    discard_foreign_kv: bool = parameter(
        False,
        'Discard KV of another planner in the folder and keep the segments',
        old=('renew',),
    )
    text_encoder: str = parameter(
        'auto',
        'Text encoder used for retrieval and groups: auto (minilm if the extra memory is '
        'installed, otherwise hashing), minilm, hashing, or the folder of a '
        'sentence-transformers model',
        old=('encoder',),
    )
    world_step_seconds: float = parameter(
        5.0,
        'Duration (s) of a world step; 0: steps do not pass',
        range=(0.0, 1e6),
        old=('step_seconds',),
    )
    precompute: bool = parameter(
        True, 'Compute missing KV before a plan needs it', when='live', old=('ahead',)
    )
    max_task_records: int = parameter(
        48,
        'Number of task records that are kept, newest first; 0: none',
        range=(0, 100_000),
        old=('task_records',),
    )
