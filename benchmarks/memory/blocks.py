"""Memory as KEEP's baselines store it: fixed blocks of segments, in order of arrival.

A block is computed jointly and retrieved as a whole, like a static group. After a change, its KV
in front of the change stays valid, so only the tokens behind it are recomputed. This favours
blocks: the front is held in memory, wherever the rest of a store is, and costs only a copy; and a
new segment is appended, where it invalidates nothing.

Knows ids, tokens and a planner's row. Segments are never removed here.

Source: KEEP, section 3, challenge 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, takewhile

import numpy as np
from torch import Tensor

from benchmarks.memory.load_policies import PolicyQueue
from benchmarks.memory.reuse_variants import ComparingPrefill, variant_method
from benchmarks.memory.spans import TimedLoader
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.groups import EmbeddingTable, Group, Transition
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import FullRecompute, Reuse
from embodied_kv.memory.segment import Unit, UnitKv
from embodied_kv.planning.planner_row import PlannerRow


class Blocks:
    """Replaces `memory.groups.Groups`: blocks of `size` segments each, all of them static.

    counts and moved exist because callers of groups read them; they stay empty.
    """

    def __init__(self, width: int, size: int) -> None:
        self.vectors, self.size, self.step = EmbeddingTable(width), size, 0
        self.counts, self.moved = Counter(), {}
        self._of: dict[str, Group] = {}
        self._blocks: list[Group] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._blocks)

    def of(self, id: str) -> Group:
        return self._of[id]

    def tokens(self, id: str) -> int:
        return self._of[id].members[id]

    def ids(self, block: Group) -> tuple[str, ...]:
        """Return the ids of the members of a block, in order of arrival."""
        return tuple(block.members)

    def units(self) -> list[tuple[str, ...]]:
        return [self.ids(block) for block in self]

    def put(self, id: str, embedding: np.ndarray, tokens: int, step: int) -> int:
        """Append a new segment, or change one in place, and return 0 invalidated tokens."""
        if (block := self._of.get(id)) is None:
            if len(self._of) == self.size * len(self._blocks):
                number, mean = len(self._blocks), np.zeros(self.vectors.width, np.float32)
                self._blocks.append(Group(number, mean, step, static=True))
            block = self._of[id] = self._blocks[-1]
        self.vectors[id], self.step = embedding, step
        block.tokens += tokens - block.members.get(id, 0)
        block.members[id] = tokens
        return 0

    def advance(self, step: int) -> tuple[Transition, ...]:
        """Set the step. Return no transitions, because blocks do not change."""
        self.step = step
        return ()


class Behind(FullRecompute):
    """Recomputes everything except the first `front` tokens, whose KV is in the row."""

    def __init__(self, front: int) -> None:
        self._front = front

    def resident(self, prompt: Prompt) -> int:
        return self._front


class WatchedRow(PlannerRow):
    """A row that counts the tokens computed for units; `loader` has the timeline of the last run.

    The config is a `VariantConfig`, and the methods are those of `variant_method`.

    fronts: whether a unit that was computed before is recomputed only behind its first change.
    rotate: whether stored keys are rotated to their new positions.
    """

    methods = (*PlannerRow.methods, 'cacheblend', 'epic')

    def __init__(self, *row: object, fronts: bool = False, rotate: bool = True) -> None:
        model, load, config, _ = row
        super().__init__(*row)
        move = self._prefill._move if rotate else _stays
        self._prefill = ComparingPrefill(
            model, self.arena, 0, load, move, self._step, config.prefill_step_tokens
        )
        self._prefill.queue = partial(PolicyQueue, policy=config.load_policy)
        self._prefill.loader = self._timed
        self._fronts, self._last, self.fresh_tokens = fronts, {}, 0

    def _timed(self, *given: object, **named: object) -> TimedLoader:
        self.loader = TimedLoader(*given, **named)
        return self.loader

    def method(self, name: str) -> Reuse:
        return variant_method(name, self._config, len(self.arena.layers))

    def compute(self, unit: Unit, tokens: Sequence[Sequence[int]]) -> UnitKv:
        lengths = tuple(map(len, tokens))
        front = self._bring(unit.group, tokens, sum(lengths)) if self._fronts else 0
        self.fresh_tokens += sum(lengths) - front
        if not front:
            made = super().compute(unit, tokens)
        else:
            self._filled_by = ''
            self._prefill.run(Prompt((), (), [*chain(*tokens)]), Behind(front))
            made = UnitKv(unit, *(part.cpu().clone() for part in self.arena.row(0)), lengths)
        if self._fronts:
            self._last[unit.group] = tokens, made
        return made

    def _bring(self, block: int, tokens: Sequence[Sequence[int]], length: int) -> int:
        """Copy the KV of a block's unchanged first segments into the row, and return their tokens.

        At least one token of `length` is left to compute.
        """
        if block not in self._last:
            return 0
        old, kept = self._last[block]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(old, tokens, strict=False))
        front = min(sum(len(segment) for segment, _ in same), length - 1)
        if front:
            self.arena.set_length(0, length)
            view = SparsePositionView(self.arena, 0)
            for layer, kv in enumerate(zip(kept.k, kept.v, strict=True)):
                view.put(layer, 0, *(part[:, :front] for part in kv))
        return front


def _stays(k: Tensor, by: int, layer: int) -> Tensor:
    """Return the keys as they were computed, whatever position they come to."""
    return k
