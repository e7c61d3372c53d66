"""Rows of KV for planners, side by side in one arena: those that say an answer do so in one batch.

Knows a model, rows, and which of them say something. Does not know prompts, memory or robots: a
row is a robot's own as long as the robot has it, and no row reads another.

A step takes every row that is saying a token further. Whoever waits for an answer asks for steps,
one of them at a time: where another's step took its row along, it asks for none. So however many
wait, there are as many steps as for one; rows that are filled meanwhile take no part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from embodied_kv.engine.shapes import doubling
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.pool import Evictable
from embodied_kv.memory.prefill import Step
from embodied_kv.model.planner import Planner
from embodied_kv.planning.plan import RowPlan
from embodied_kv.planning.token_step import TokenStep


@dataclass(eq=False)
class Saying:
    """An answer that is being said, from a row of which something was said already.

    held: what the row holds so far. until: tokens of the answer at which it rests. most: that it
    may have. on_held: told of `held` after each token, on the thread that computes.
    """

    row: int
    held: RowPlan
    until: int
    eos: int
    most: int
    on_held: Callable[[RowPlan], None]

    @property
    def rests(self) -> bool:
        return self.held.plan.over or len(self.held.plan.answer) >= self.until

    def take(self, token: int, tokens: int) -> None:
        """The next token. tokens: that lie in the row now."""
        self.held = self.held.saying(token, self.eos, self.most, tokens)
        self.on_held(self.held)


class PlannerRows:
    """So many rows over one model. As a pool it is what no planner has taken."""

    name = 'free planner rows'

    def __init__(self, model: Planner, rows: int = 1) -> None:
        b = model.config.backbone
        self._model = model
        self.arena = Arena(
            layers=b.layers,
            rows=rows,
            kv_heads=b.kv_heads,
            max_tokens=model.config.max_tokens,
            head_dim=b.head_dim,
            dtype=model.dtype,
            device=model.device,
        )
        # A batch is padded where a size costs a capture.
        sizes = range(1, rows + 1) if model.device.type == 'cpu' else doubling(rows)
        self._token_step = TokenStep(model, self.arena, sizes)
        self._free = list(range(rows))
        self._saying: list[Saying] = []
        # Held while a step computes: who stops saying waits for it. Reentrant, since an answer
        # that nobody reads on may be given up anywhere.
        self._lock = threading.RLock()
        self._asking = threading.Lock()  # for a step; the thread that computes never takes it
        self.steps = self.tokens = 0  # so far; tokens / steps is how full the batches were

    def take(self) -> int:
        """A row, until it is given back. Raises ValueError where all are taken."""
        with self._lock:
            if not self._free:
                raise ValueError(
                    f'all {self.arena.rows} rows of the planner are taken: raise planner_rows'
                )
            row = self._free.pop(0)
            self.arena.clear(row)
            return row

    def give_back(self, row: int) -> None:
        """Whoever takes it next finds it empty."""
        with self._lock:
            self.arena.set_length(row, 0)
            self._free.append(row)

    def say(self, saying: Saying, step: Step) -> Iterator[RowPlan]:
        """What the row holds after each step, until it rests.

        step: runs a piece of computation on the thread that computes, and waits for it.
        """
        with self._lock:
            self._saying.append(saying)
        try:
            while not saying.rests:
                said = len(saying.held.plan.answer)
                with self._asking:
                    if len(saying.held.plan.answer) == said and not saying.rests:
                        step(self._advance)
                yield saying.held
            yield saying.held  # another may have asked for the last step
        finally:
            with self._lock:
                self._saying.remove(saying)

    @torch.inference_mode()
    def _advance(self) -> None:
        """All that say something, a token further."""
        with self._lock:
            saying = sorted((s for s in self._saying if not s.rests), key=lambda s: s.row)
            if not saying:
                return
            for one, token in zip(saying, self._next(saying), strict=True):
                one.take(token, int(self.arena.lengths[0, one.row]))
            self.steps, self.tokens = self.steps + 1, self.tokens + len(saying)

    def _next(self, saying: Sequence[Saying]) -> list[int]:
        """The likeliest tokens that follow."""
        rows, helds = [one.row for one in saying], [one.held for one in saying]
        positions = [held.plan.next_position for held in helds]
        absent = [held.absent for held in helds]
        for row, at, lacks in zip(rows, positions, absent, strict=True):
            self.arena.set_length(row, at + 1 - min(lacks, default=0))
        ids = [held.plan.answer[-1] for held in helds]
        return self._token_step.run(rows, ids, positions, absent)

    # ------------------------------------------------------------------ as a pool

    @property
    def bytes(self) -> int:
        return len(self._free) * self.arena.bytes_per_row

    bytes_used = bytes_reserved = 0

    def evictable(self) -> list[Evictable]:
        """Nothing: nothing is in use."""
        return []

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: what is free is empty, and says nothing."""
        with self._lock:
            lengths = self.arena.lengths[0, self._free]
            assert not lengths.any(), f'free rows of the planner have {lengths} tokens'
            assert not {one.row for one in self._saying} & {*self._free}, 'a free row says a plan'
