"""The ways that are compared: a method of reuse over a construction of memory, and its planning.

Knows names and numbers, and opens what is asked. Does not know questions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from torch import Tensor

from benchmarks.memory.blocks import Blocks, WatchedRow
from benchmarks.memory.invalidation import PREFIX, Invalidation
from benchmarks.memory.reuse_variants import VariantConfig
from benchmarks.memory.settings import Settings, Side
from benchmarks.memory.spans import Timeline
from embodied_kv.config import BackboneConfig
from embodied_kv.memory.encoder import Encoder, encoder
from embodied_kv.memory.groups import Transition
from embodied_kv.memory.prefill import Load
from embodied_kv.memory.store import Change
from embodied_kv.model.planner import PLANNER_MISSIONS, PlannerConfig
from embodied_kv.model.planner_checkpoint import (
    LoadedPlanner,
    bundled_planner,
    load_planner,
    random_planner,
)
from embodied_kv.planning.plan import Plan
from embodied_kv.planning.planning import Planning
from training.planner.corpus import planner_tokenizer

KEEP, BLEND, FULL = 'keep', 'cacheblend', 'full'
RANDOM = 'random'


@dataclass(frozen=True)
class Way:
    """blocks: segments of a fixed block, 0 for KEEP's groups. numbers: of the VariantConfig.

    rotate: whether stored keys are turned to where they come. timed, answered: where it differs
    from others, in seconds, in what it says. load_seconds: that reading a token of a layer takes
    longer than here, as from a slower medium.
    """

    name: str
    method: str
    blocks: int = 0
    numbers: Mapping[str, object] = field(default_factory=dict)
    rotate: bool = True
    timed: bool = True
    answered: bool = True
    load_seconds: float = 0.0

    @property
    def construction(self) -> str:
        """What updates make useless, by the name that `Invalidation` has for it."""
        if self.method in (FULL, 'prefix'):
            return PREFIX if self.method == 'prefix' else ''
        return f'blocks of {self.blocks}' if self.blocks else 'groups'


def trace_ways(block: int) -> list[Way]:
    """As the paper compares them; text is retrieved by segment, as it came.

    Two more are full recompute with in view what blocks, and groups, bring there: what a way of
    reuse loses against them, reuse alone has lost.
    """
    return [
        Way(FULL, FULL, 1),
        Way('prefix', 'prefix', 1),
        Way('full_reuse', 'full_reuse', block),
        Way('epic', 'epic', block),
        Way(BLEND, BLEND, block),
        Way(KEEP, KEEP),
        Way(full_view(block), FULL, block, timed=False),
        Way(full_view(0), FULL, timed=False),
    ]


def full_view(blocks: int) -> str:
    """Name of full recompute with in view what a construction brings there."""
    return FULL if blocks == 1 else f'{FULL}, view of {"blocks" if blocks else "groups"}'


@dataclass(frozen=True)
class TimedPlan(Plan):
    """A plan, and the loads and computation of its prefill."""

    timeline: Timeline


class BenchPlanning(Planning):
    """Planning with another construction, or without turned keys, that says what it computed."""

    def __init__(
        self,
        planner: LoadedPlanner,
        folder: Path,
        config: VariantConfig,
        way: Way,
        encoder: str = 'hashing',
    ) -> None:
        own = replace(config, reuse_method=KEEP)  # the node has fewer methods than the row below
        super().__init__(planner, folder, own, encoder_of(encoder))
        self.config = config
        if way.blocks:
            self.memory.groups = Blocks(self.memory.encoder.width, way.blocks)
        self._invalidation = Invalidation((way.blocks,) if way.blocks else ())
        self._way, self.row = (
            way,
            WatchedRow(
                planner.model,
                slowed(self.memory.store.load_memory, way.load_seconds),
                self.config,
                lambda work: work(),
                fronts=bool(way.blocks),
                rotate=way.rotate,
            ),
        )

    def upsert(self, *segments: tuple[str, str, str]) -> tuple[Change, ...]:
        """Add or change segments of this memory, which is new, and note what that invalidates."""
        changes = super().upsert(*segments)
        for change in changes:
            if change.changed:
                id = change.segment.id
                self._invalidation.note(id, self.memory.groups.tokens(id))
        return changes

    def advance(self, steps: int = 1) -> tuple[Transition, ...]:
        """Advance the world step, and count what its changes invalidated."""
        self._invalidation.end()
        return super().advance(steps)

    def plan(self, *given: object, **named: object) -> TimedPlan:
        """Return the plan with the timeline of its prefill."""
        plan = super().plan(*given, **named)
        return TimedPlan(**vars(plan), timeline=self.row.loader.timeline)

    @property
    def fresh_tokens(self) -> int:
        """Whose KV was computed for units, so far."""
        return self.row.fresh_tokens

    @property
    def lost(self) -> int:
        """Tokens whose KV updates made useless, until the end of the last step."""
        counted = self.stats().invalidated | self._invalidation.lost
        return counted.get(self._way.construction, 0)


def open_way(
    way: Way, planner: LoadedPlanner, folder: Path, settings: Settings, side: Side
) -> BenchPlanning:
    """Over a new folder."""
    made, reuse = settings.construction, settings.reuse
    numbers = dict(
        max_context_tokens=side.tokens,
        max_answer_tokens=side.answer_tokens,
        epic_tokens=side.epic_tokens,
        recompute_ratio=reuse.recompute_ratio(planner.config.backbone.layers),
        recompute_schedule=reuse.schedule if way.method == KEEP else 'even',
        max_walk_hops=reuse.hops,
        restart=reuse.restart,
        group_stable_steps=made.stable_steps,
        min_group_similarity=made.similarity,
        host_cache_mib=made.cache_mib,
        reuse_method=way.method,
    )
    config = VariantConfig(**numbers | way.numbers)
    return BenchPlanning(planner, folder, config, way, made.encoder)


@cache
def encoder_of(name: str) -> Encoder:
    """One of each name for all ways."""
    return encoder(name)


def slowed(load: Load, seconds: float) -> Load:
    """The same, by so many seconds a token and layer later; other threads go on meanwhile."""
    if not seconds:
        return load

    def later(unit: str, layer: int) -> tuple[Tensor, Tensor]:
        k, v = load(unit, layer)
        time.sleep(seconds * k.shape[1])
        return k, v

    return later


def answering(name: str) -> LoadedPlanner:
    """The planner that is asked: a bundled one, a folder, or random weights of the same size."""
    if name == RANDOM:
        words = planner_tokenizer(PLANNER_MISSIONS.backbone.vocab_size)
        return random_planner(PLANNER_MISSIONS, words)
    return load_planner(name if Path(name).is_dir() else bundled_planner(name))


def timed(settings: Settings, **others: int) -> LoadedPlanner:
    """The large planner, by bytes; others: dimensions instead of its own."""
    c = replace(settings.planner, **others)
    size = (c.width, c.layers, c.heads, c.kv_heads, c.head_dim, c.mlp)
    config = PlannerConfig('memory_bench', BackboneConfig(*size, vocab_size=260), c.max_tokens)
    return random_planner(config, seed=c.seed)
