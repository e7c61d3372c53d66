"""A planner over one row of KV: prompts, the KV of units, and what it says.

Knows the model, the row, and what the row holds. Does not know memory, or what the tokens mean.
Every piece of computation goes through `step`; whoever owns the device gets it back after some
tokens of a layer, and after each token of an answer, which is said beside those of other rows.

What the last prompt left in the row can be given up between two uses: the row is a pool of KV.
What it holds of a plan is said at every moment between two pieces of computation (`held`), so that
a capsule may take it along, and put back it is gone on from: an answer that was cut off is said to
its end, and nothing of its prompt is computed again.

A thread may stop waiting for a step, which is then still queued, or running. When a use of the row
ends, no step of it writes the row any more: one that runs is waited for, and one that is queued
raises instead of its work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from embodied_kv.compress.registry import method
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.pool import Evictable
from embodied_kv.memory.prefill import Load, Prefill, Step, Work
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import FullRecompute, Reuse
from embodied_kv.memory.rotate import Rotation, frequencies
from embodied_kv.memory.unit import Unit, UnitKv
from embodied_kv.model.planner import Planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.plan import PlanRecord, RowPlan
from embodied_kv.planning.planner_rows import PlannerRows, Saying
from embodied_kv.planning.reuse_methods import reuse_method
from embodied_kv.planning.row_compression import compress_row
from embodied_kv.planning.unit_compression import own_attention, thinned, unit_method

T = TypeVar('T')


class PlannerRow:
    """load: stored KV, as `Prefill` takes it. kv_budget: whose budget it shares.

    rows: of which one is its own until `close`; without, it has an arena of its own. Raises
    ValueError where none is left. One caller at a time, but for what a pool does. held: the plan
    that lies in the row, with what it said so far; None: none that could be gone on from. It
    changes on the thread that computes.
    """

    name = 'planner row'

    def __init__(
        self,
        model: Planner,
        load: Load,
        config: PlanningConfig,
        step: Step,
        kv_budget: KvBudget | None = None,
        rows: PlannerRows | None = None,
    ) -> None:
        b = model.config.backbone
        self._model, self._config, self._given_step = model, config, step
        # Held while a step computes, and while what the row holds and has reserved is counted.
        self._computing = threading.RLock()
        self._uses = 0  # of the row that ended
        self._rows = rows or PlannerRows(model)
        self._row = self._rows.take()
        self.arena = self._rows.arena.alone(self._row)
        move = Rotation(frequencies(b.head_dim, b.rope_theta).to(model.device))
        self._prefill = Prefill(
            model, self.arena, 0, load, move, config.load_policy, self._step, config.step_tokens
        )
        self._filled_by = ''  # the method that filled the row; '' where that did not end well
        self._reuse = reuse_method(config.method, config, b.layers)
        self._method = method('vl_cache', shares='equal')  # by what question and answer attend to
        self._units = unit_method(config.unit_compress)
        self._using, self._kv_budget = threading.Lock(), kv_budget or KvBudget()
        self._used_at = time.monotonic()
        self.bytes_reserved = 0
        self._fills = 0  # so far: the name of what lies in the row
        self.held: RowPlan | None = None
        self._resumed = False  # what is held came by `resume`, and nobody asked for it yet
        self._token_seconds = 0.0  # of the last prefill that computed everything, by its length

    def close(self) -> None:
        """The row is another planner's from now on: nothing that was offered of it is evicted."""
        self._using.acquire()  # for good
        with self._computing:
            self._uses += 1
            self.bytes_reserved = 0
            self._rows.give_back(self._row)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For as long as the block, what is in the row stays: from `fill` to the end of `say`.

        Raises OverBudget where the KV budget has no room for a full row.
        """
        with self._using:
            with self._kv_budget.claim(self, self.bytes - self.bytes_reserved, wait=True):
                self.bytes_reserved = self.bytes
            try:
                yield
            finally:
                with self._computing:
                    self._uses += 1
                    self.bytes_reserved, self._used_at = self.bytes_used, time.monotonic()

    def _step(self, work: Callable[[], T]) -> T:
        """Run a piece of computation of this use by the `step` that was given.

        Raises RuntimeError, where that runs it, if the use ended before.
        """
        use = self._uses

        @wraps(work)
        def begun() -> T:
            with self._computing:
                if use != self._uses:
                    raise RuntimeError('the use of the planner row ended before this step of it')
                return work()

        return self._given_step(begun)

    def method(self, name: str) -> Reuse:
        """A new one of that name. Raises ValueError for an unknown one."""
        return reuse_method(name, self._config, len(self.arena.layers))

    def check(self, held: RowPlan) -> None:
        """As `RowPlan.check`. Raises ValueError for an unknown method, too."""
        self.method(held.plan.method)
        held.check(len(self.arena.layers), self._model.config.backbone.vocab_size)

    def answer(self, prompt: Prompt, asked: PlanRecord, eos: int) -> tuple[Iterator[int], Work]:
        """The likeliest tokens, one by one, until `eos` or `answer_tokens`; what the prefill did.

        Where the row was resumed with the same plan, it is gone on from: nothing is prefilled.
        """
        if self.goes_on(asked):
            held, nothing = self.held, [0] * len(self.arena.layers)
            self._resumed = False
            saying = self._say(held, prompt.question_at, eos)
            return chain(held.plan.answer, saying), Work(nothing, nothing[:])
        hidden, work = self.fill(prompt, asked.method)
        begun = RowPlan(asked, 0, tuple(work.lacks))
        return self._say(begun, prompt.question_at, eos, hidden), work

    def goes_on(self, asked: PlanRecord) -> bool:
        """Whether the row was resumed with this very plan, which nobody asked for since.

        And whether what was said of it is what a plan of `answer_tokens` would say.
        """
        held = self.held
        same = held is not None and held.plan.asked == asked
        return self._resumed and same and held.fits(self._config.answer_tokens)

    def resume(self, put: Callable[[], None], held: RowPlan) -> bool:
        """A plan lies in the row from now on -> False, and nothing has changed: the row is in use.

        put: writes its K and V; called on the thread that computes, as this is. What it raises is
        raised, and the row holds no plan then. Raises OverBudget where the KV budget has no room,
        and ValueError for an unknown method, and nothing has changed.
        """
        reuse = self.method(held.plan.method)
        if not self._using.acquire(blocking=False):
            return False
        try:
            size = held.tokens * self.arena.bytes_per_token * len(self.arena.layers)
            with self._kv_budget.claim(self, max(0, size - self.bytes_reserved)):
                self._forget()
                put()
                with self._computing:
                    self.arena.set_length(0, held.tokens)
                    self.arena.clear(0, held.tokens)
                    self.bytes_reserved, self._used_at = self.bytes_used, time.monotonic()
            reuse.holds(held.plan.prompt)
            self._reuse, self._filled_by = reuse, '' if any(held.absent) else held.plan.method
            self.held, self._resumed = held, True
            return True
        finally:
            self._using.release()

    def fill(self, prompt: Prompt, method: str) -> tuple[Tensor, Work]:
        """As `Prefill.run`. What the last prompt left in the row counts for its own method."""
        if method != self._filled_by:
            self._reuse = self.method(method)
        filled = self._run(prompt, self._reuse)
        self._filled_by = '' if any(filled[1].lacks) else method
        return filled

    def _run(self, prompt: Prompt, reuse: Reuse) -> tuple[Tensor, Work]:
        self._forget()
        began = time.perf_counter()
        hidden, work = self._prefill.run(prompt, reuse)
        if min(work.computed) == prompt.length:
            self._token_seconds = (time.perf_counter() - began) / prompt.length
        return hidden, work

    def _forget(self) -> None:
        """What lies in the row is nothing that could be gone on from, or is resident."""
        self._filled_by, self.held, self._resumed = '', None, False
        self._fills += 1

    def compute(self, unit: Unit, tokens: Sequence[Sequence[int]]) -> UnitKv:
        """The KV of a unit from its segments' tokens, computed together from position 0 on."""
        everything = [token for segment in tokens for token in segment]
        with self.in_use():
            self._run(Prompt((), (), everything), FullRecompute())
            k, v = self._step(self._copied)
            lengths = tuple(map(len, tokens))
            if (ratio := self._config.unit_keep_ratio) < 1:
                scored = self._units.queries is not None
                columns = self._attended(everything) if scored else None
                thin = partial(thinned, k, v, lengths, columns, self._units, ratio)
                k, v, lengths = self._step(thin)
        return UnitKv(unit, k, v, lengths)

    def _attended(self, ids: Sequence[int]) -> Tensor:
        """As `own_attention`, on the host."""
        block = max(1, self._config.step_tokens // len(self.arena.layers))
        return own_attention(self._model, self.arena, ids, self._step, block).cpu()

    def _say(
        self, held: RowPlan, question_at: int, eos: int, hidden: Tensor | None = None
    ) -> Iterator[int]:
        """The tokens that follow. hidden: of the prompt's last one, where none was said yet."""
        most, choosing = self._config.answer_tokens, self._config.row_compress_after + 1
        if not (held.plan.answer or held.plan.over):
            held = self._step(torch.inference_mode()(partial(self._first, held, eos, hidden)))
            yield from held.plan.answer
        while not held.plan.over:
            said = len(held.plan.answer)
            chooses = self._config.row_keep_ratio < 1 and not held.chosen
            if chooses and said == choosing:
                held = self._compress(held, question_at)
            until = choosing if chooses and said < choosing else most
            saying = Saying(self._row, held, until, eos, most, self._hold)
            # A step of all rows moves those alone whose answer is not over or given up.
            for held in self._rows.say(saying, self._given_step):
                yield from held.plan.answer[said:]
                said = len(held.plan.answer)

    def _compress(self, held: RowPlan, question_at: int) -> RowPlan:
        """Question and answer choose what is kept of the prompt before them."""
        self._filled_by, self.held = '', None
        plan, layers = held.plan, len(self.arena.layers)
        absent = compress_row(
            self._model,
            self.arena,
            (*plan.prompt, *plan.answer)[question_at : plan.next_position],
            question_at,
            held.absent or (0,) * layers,
            self._method,
            self._config.row_keep_ratio,
            self._step,
            max(1, self._config.step_tokens // layers),
        )
        return replace(held, absent=absent, chosen=True)

    # ------------------------------------------------------------------ as a pool, of any thread

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used

    def evictable(self) -> list[Evictable]:
        """What the last prompt left, between two uses; the next one finds nothing resident.

        cost: of computing all that a plan read, by the last prefill that did so; 0 for a unit's
        KV, which is kept elsewhere, and for a prompt that ended badly.
        """
        if self._using.locked() or not (used := self.bytes_used):
            return []
        cost = held.read * self._token_seconds if (held := self.held) else 0.0
        idle = time.monotonic() - self._used_at
        return [Evictable(used, cost, partial(self._evict, self._fills), idle)]

    def _evict(self, fill: int) -> int:
        """fill: the number of that which is to go."""
        if not self._using.acquire(blocking=False):
            return 0
        try:
            with self._computing:
                freed = self.bytes_used if fill == self._fills else 0
                if freed:
                    self._forget()
                    self.arena.set_length(0, 0)
                    self.bytes_reserved = 0
            return freed
        finally:
            self._using.release()

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law: what may be resident lies in the row."""
        with self._computing:  # else the numbers are those of different moments
            length, filled_by = int(self.arena.lengths[0, 0]), self._filled_by
            used, reserved = self.bytes_used, self.bytes_reserved
            promised = used <= reserved or self._using.locked()
        assert length <= self.arena.max_tokens, f'the planner row has {length} tokens'
        assert promised, f'{used} bytes of the planner row in use, {reserved} reserved'
        assert length or not filled_by, f'the planner row is empty, not {filled_by}'

    def _copied(self) -> list[Tensor]:
        """K and V of what the row holds, in host memory."""
        return [part.to('cpu', copy=True) for part in self.arena.row(0)]

    def _first(self, held: RowPlan, eos: int, hidden: Tensor) -> RowPlan:
        """The first token, and what the row holds then. hidden: [1, 1, width], before the norm."""
        token = int(self._model.logits(self._model.backbone.norm(hidden))[0, -1].argmax())
        tokens = int(self.arena.lengths[0, 0])
        self._hold(held.saying(token, eos, self._config.answer_tokens, tokens))
        return self.held

    def _hold(self, held: RowPlan) -> None:
        self.held = held
