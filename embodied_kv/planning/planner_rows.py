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

import numpy as np
import torch

from embodied_kv.engine.shapes import doubling, smallest
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.decode_view import DecodeView
from embodied_kv.kv.moves import host_memory
from embodied_kv.kv.pool import Evictable
from embodied_kv.memory.prefill import Step
from embodied_kv.model.planner import Planner
from embodied_kv.planning.plan import RowPlan
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs
from embodied_kv.runtime.stream import Stream

KIND = 'planner_token'


class TokenStep:
    """The likeliest next tokens, by one graph per size of a batch; one thread at a time.

    All graphs are captured when it is made. A batch is padded to the next of the ascending sizes.

    graphs: what was captured. watched: see `runtime.graph_cache.GraphCache`.
    """

    def __init__(
        self, model: Planner, arena: Arena, sizes: Sequence[int], watched: bool = False
    ) -> None:
        self._model, self._arena, self._sizes = model, arena, tuple(sizes)
        self.graphs = GraphCache(arena.device, watched)
        most = self._sizes[-1]
        fields = {**DecodeView.fields(arena, most), 'ids': (most, np.int64)}
        self._inputs = StepInputs(arena.device, fields)
        self._chosen = torch.zeros(most, dtype=torch.int64, device=arena.device)
        on_cpu = arena.device.type == 'cpu'
        self._host = self._chosen if on_cpu else host_memory((most,), torch.int64)
        for slots in self._sizes:
            self._capture(slots)
        Stream.current(arena.device).synchronize()  # a replay may be on any other stream

    def _capture(self, slots: int) -> None:
        model, arena, chosen = self._model, self._arena, self._chosen[:slots]
        ids = self._inputs.cut('ids', slots, 1).device

        def advance(view: DecodeView) -> None:
            logits = model.logits(model(ids, view.positions, view))
            chosen.copy_(logits[:, -1].argmax(-1))

        self.graphs.capture(
            Shape(KIND, slots, 1),
            advance,
            DecodeView(arena, slots, self._inputs),
            writes=[Buffer('chosen', chosen)],
            stores=arena.buffers('planner'),
            reads=[Buffer('ids', ids)],
        )

    @torch.inference_mode()
    def run(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        positions: Sequence[int],
        absent: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a token to each row, and return the token that follows in each.

        Args:
            rows: Rows whose lengths count the new token already.
            ids: The new token of each row.
            positions: Its logical position.
            absent: Tokens before it that each layer of each row lacks; () where none does.

        Raises:
            ValueError: There are more rows than the largest batch holds.
        """
        slots = smallest(self._sizes, len(rows), 'rows', 'raise planner_rows')
        sent, graph = self._inputs.cut('ids', slots).host, self.graphs[Shape(KIND, slots, 1)]
        sent[:] = 0
        sent[: len(ids)] = ids
        graph.view.bind(rows, positions, absent)
        graph.replay()
        self._host.copy_(self._chosen, non_blocking=True)
        Stream.current(self._arena.device).synchronize()
        return self._host[: len(rows)].tolist()


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
