"""The ways that are compared: a method of reuse over a construction of memory, and its planning.

Knows names and numbers, and opens the planning of a way. Does not know questions.
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
    """A method of reuse over a construction of memory.

    blocks: segments of a fixed block, 0 for KEEP's groups. numbers: fields of the VariantConfig.
    rotate: whether stored keys are rotated to their new positions. timed, answered: whether the
    way is timed, and whether its answers are judged; False where they cannot differ from another
    way's. load_seconds: additional time to load a token of a layer, as from a slower medium.
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
        """Return the name by which `Invalidation` counts what updates invalidate."""
        if self.method in (FULL, 'prefix'):
            return PREFIX if self.method == 'prefix' else ''
        return f'blocks of {self.blocks}' if self.blocks else 'groups'


def trace_ways(block: int) -> list[Way]:
    """Return the ways that the paper compares; text is retrieved by segment, in order of arrival.

    Two more are full recompute with the same view as blocks and as groups: a loss of a way of
    reuse against them is due to reuse alone.
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
    """Return the name of full recompute with the view that a construction retrieves."""
    return FULL if blocks == 1 else f'{FULL}, view of {"blocks" if blocks else "groups"}'


@dataclass(frozen=True)
class TimedPlan(Plan):
    """A plan, and the timeline of the loads and computation of its prefill."""

    timeline: Timeline


class BenchPlanning(Planning):
    """Planning with another construction, or unrotated keys, that counts what it computed."""

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
        """Return the number of tokens whose KV was computed for units so far."""
        return self.row.fresh_tokens

    @property
    def lost(self) -> int:
        """Return the number of tokens whose KV updates invalidated, up to the last step."""
        counted = self.stats().invalidated | self._invalidation.lost
        return counted.get(self._way.construction, 0)


def open_way(
    way: Way, planner: LoadedPlanner, folder: Path, settings: Settings, side: Side
) -> BenchPlanning:
    """Return the planning of a way over a new folder."""
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
    """Return the encoder of a name; all ways share one."""
    return encoder(name)


def slowed(load: Load, seconds: float) -> Load:
    """Return a load that takes so many seconds longer per token and layer.

    Other threads run during that time.
    """
    if not seconds:
        return load

    def later(unit: str, layer: int) -> tuple[Tensor, Tensor]:
        k, v = load(unit, layer)
        time.sleep(seconds * k.shape[1])
        return k, v

    return later


def answering(name: str) -> LoadedPlanner:
    """Return the planner whose answers are judged: bundled, from a folder, or random weights."""
    if name == RANDOM:
        words = planner_tokenizer(PLANNER_MISSIONS.backbone.vocab_size)
        return random_planner(PLANNER_MISSIONS, words)
    return load_planner(name if Path(name).is_dir() else bundled_planner(name))


def timed(settings: Settings, **others: int) -> LoadedPlanner:
    """Return the large planner; its tokens are bytes. others: dimensions that replace its own."""
    c = replace(settings.planner, **others)
    size = (c.width, c.layers, c.heads, c.kv_heads, c.head_dim, c.mlp)
    config = PlannerConfig('memory_bench', BackboneConfig(*size, vocab_size=260), c.max_tokens)
    return random_planner(config, seed=c.seed)
