"""One row of KV with a planner: prompts, the KV of units, and answers.

All computation goes through `step`, so other work of the device can run after some tokens of a
layer and after each token of an answer, which is decoded in one batch with those of other rows.

Between two uses the row is a pool of KV whose content may be evicted. Between two steps, `held` is
the plan in the row, so that a capsule can store it. A restored plan is continued: the answer is
decoded to its end without computing the prompt again.

A thread may stop waiting for a step that is still queued or running. No step writes the row after
the end of the use to which it belongs: a running step is waited for, and a queued one raises.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from embodied_kv.errors import ErrorCode
from embodied_kv.kernels.sampling import sample_tokens
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.pool import Evictable
from embodied_kv.memory.keep import Keep, keep_ratio
from embodied_kv.memory.prefill import Load, Prefill, Step, Work
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import FullRecompute, PrefixCaching, Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.memory.segment import RobotMemoryError, Unit, UnitKv, check_choice
from embodied_kv.model.planner import Planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.costs import AUTO, KEEP
from embodied_kv.planning.plan import GREEDY, Choice, PlanRecord, RowPlan
from embodied_kv.planning.planner_rows import Decoding, PlannerRows, not_finite

PLAIN_METHODS = {'full': FullRecompute, 'prefix': PrefixCaching, 'full_reuse': Reuse}
METHODS = (KEEP, *PLAIN_METHODS)


def reuse_method(name: str, config: PlanningConfig, layers: int) -> Reuse:
    """Return a new reuse method for a planner with that many layers.

    Raises ValueError if the name is unknown, or the layers cannot reach the recompute ratio.
    """
    check_choice('method', name, METHODS)
    if name in PLAIN_METHODS:
        return PLAIN_METHODS[name]()
    return Keep(keep_ratio(config.recompute_ratio, layers), config.max_walk_hops)


T = TypeVar('T')


class PlannerRow:
    """A row of KV and its planner. One caller at a time, except for the methods of a pool.

    `held` is the plan in the row with its answer so far, None if there is none to be continued; it
    changes on the engine thread.

    Args:
        load: Loads stored KV, see `Prefill`.
        step: Runs a piece of computation on the engine thread, and waits for it.
        kv_budget: The budget that it shares.
        rows: Provides the row until `close`; None: a new arena with one row.
        longest_step: Target duration of a step, s; see `Prefill`.

    Raises:
        ValueError: All rows are taken, or a method is unknown.
    """

    name, methods = 'planner row', METHODS

    def __init__(
        self,
        model: Planner,
        load: Load,
        config: PlanningConfig,
        step: Step,
        kv_budget: KvBudget | None = None,
        rows: PlannerRows | None = None,
        longest_step: float = math.inf,
    ) -> None:
        self._model, self._config, self._given_step = model, config, step
        # Held while a step computes, and while the use of the row is counted.
        self._computing = threading.RLock()
        self._uses = 0  # number of uses of the row that ended
        self._rows = rows or PlannerRows(model)
        self._row = self._rows.take()
        self.arena = self._rows.arena.alone(self._row)
        move = Rotation(model.backbone.wavelengths.to(model.device))
        block = config.prefill_step_tokens
        self._prefill = Prefill(model, self.arena, 0, load, move, self._step, block, longest_step)
        self._filled_by = ''  # the method that filled the row; '' if that failed
        self._reuse = self.method(KEEP if config.reuse_method == AUTO else config.reuse_method)
        self._using, self._kv_budget = threading.Lock(), kv_budget or KvBudget()
        self._used_at = time.monotonic()
        self.bytes_reserved = 0
        self._fills = 0  # identifies the content of the row
        self.held: RowPlan | None = None
        self._resumed = False  # whether `held` is from `resume` and has not been used
        self._token_seconds = 0.0  # per token of the last prefill that computed everything

    def close(self) -> None:
        """Return the row; offers that were made of it evict nothing."""
        self._using.acquire()  # never released
        with self._computing:
            self._uses += 1
            self.bytes_reserved = 0
            self._rows.give_back(self._row)

    @contextmanager
    def in_use(self, evicts: bool = True) -> Iterator[None]:
        """Reserve the row for the block: its content cannot be evicted.

        evicts: as in `KvBudget.claim`. Raises OverBudgetError if the budget has no room for a full
        row.
        """
        with self._using:
            lacking = self.bytes - self.bytes_reserved
            with self._kv_budget.claim(self, lacking, wait=True, evicts=evicts):
                self.bytes_reserved = self.bytes
            try:
                yield
            finally:
                with self._computing:
                    self._uses += 1
                    self.bytes_reserved, self._used_at = self.bytes_used, time.monotonic()

    def _step(self, work: Callable[[], T]) -> T:
        """Run a piece of computation; it raises RuntimeError if this use of the row has ended."""
        use = self._uses

        @wraps(work)
        def begun() -> T:
            with self._computing:
                if use != self._uses:
                    raise RuntimeError('the use of the planner row ended before this step of it')
                return work()

        return self._given_step(begun)

    def method(self, name: str) -> Reuse:
        """Return a new reuse method. Raise ValueError if it is unknown."""
        return reuse_method(name, self._config, len(self.arena.layers))

    def check(self, held: RowPlan) -> None:
        """Raise ValueError unless the plan fits the layers, tokens and methods of this planner."""
        self.method(held.plan.method)
        tokens = self._model.config.backbone.vocab_size
        if not all(0 <= token < tokens for token in (*held.plan.prompt, *held.plan.answer)):
            raise ValueError(f'tokens must be in [0, {tokens})')

    def answer(
        self, prompt: Prompt, asked: PlanRecord, stops: Collection[int]
    ) -> tuple[Iterator[int], Work]:
        """Return the tokens of the greedy answer as an iterator, and the work of the prefill.

        If the row was resumed with the same plan, the plan is continued without a prefill.
        """
        if self.can_continue(asked) and (held := self.held):
            nothing = [0] * len(self.arena.layers)
            self._resumed = False
            return chain(held.plan.answer, self._decode(held, stops)), Work(nothing, nothing[:])
        hidden, work = self.fill(prompt, asked.method)
        return self._decode(RowPlan(asked, 0), stops, hidden), work

    def can_continue(self, asked: PlanRecord) -> bool:
        """Return whether the row was resumed with this plan, and its answer fits the limit."""
        held, most = self.held, self._config.max_answer_tokens
        same = held is not None and held.plan.asked == asked and held.fits(most)
        return self._resumed and same

    def resumed_method(self, question: str) -> str:
        """Return the method of the plan that was resumed for a question; '' if there is none."""
        held = self.held if self._resumed else None
        return held.plan.method if held and held.plan.question == question else ''

    def resume(self, put: Callable[[], None], held: RowPlan) -> bool:
        """Restore a plan into the row on the engine thread; return False if the row is in use.

        `put` writes its K and V; if it raises, the row holds no plan. Raises OverBudgetError
        without room in the budget, and ValueError for an unknown method; then nothing has changed.
        """
        reuse = self.method(held.plan.method)
        if not self._using.acquire(blocking=False):
            return False
        try:
            size = held.tokens * self.arena.bytes_per_token * len(self.arena.layers)
            lacking = max(0, size - self.bytes_reserved)
            with self._kv_budget.claim(self, lacking), self._computing:
                self._put(put, held)
                self.bytes_reserved, self._used_at = self.bytes_used, time.monotonic()
            reuse.note_restored(held.plan.prompt)
            self._reuse, self._filled_by = reuse, held.plan.method
            self.held, self._resumed = held, True
            return True
        finally:
            self._using.release()

    @torch.inference_mode()
    def _put(self, put: Callable[[], None], held: RowPlan) -> None:
        """Write the KV of a plan into the row on the engine thread."""
        self._forget()
        put()
        self.arena.set_length(0, held.tokens)
        self.arena.clear(0, held.tokens)

    def branch(
        self,
        put: Callable[[], None],
        held: RowPlan,
        prompt: Sequence[int],
        stops: Collection[int],
        choice: Choice,
    ) -> list[int]:
        """Return the answer of a branch of a plan, which replaces the content of the row.

        Args:
            put: Writes K and V of the plan into the row.
            held: The plan.
            prompt: Tokens of another prompt, of which those are computed that follow the common
                start with the plan's; () to continue the answer of the plan.
            stops: Tokens of which each ends the answer.
            choice: How its tokens are chosen.

        Raises:
            OverBudgetError: The budget has no room; nothing is evicted for the row.
        """
        with self.in_use(evicts=False):
            self._step(partial(self._put, put, held))
            if not prompt:
                return [*held.plan.answer, *self._decode(held, stops, choice=choice)]
            copied = PrefixCaching()
            copied.note_restored(held.plan.prompt)
            hidden, _ = self._run(Prompt((), (), prompt), copied)
            asked = replace(held.plan.asked, prompt=tuple(prompt))
            return list(self._decode(RowPlan(asked, 0), stops, hidden, choice))

    def fill(self, prompt: Prompt, method: str) -> tuple[Tensor, Work]:
        """Run `Prefill.run`; content of the row is reused if the same method filled it."""
        if method != self._filled_by:
            self._reuse = self.method(method)
        filled = self._run(prompt, self._reuse)
        self._filled_by = method
        return filled

    def _run(self, prompt: Prompt, reuse: Reuse) -> tuple[Tensor, Work]:
        self._forget()
        began = time.perf_counter()
        hidden, work = self._prefill.run(prompt, reuse)
        if min(work.computed) == prompt.length:
            self._token_seconds = (time.perf_counter() - began) / prompt.length
        return hidden, work

    def _forget(self) -> None:
        """Mark the content of the row as unusable."""
        self._filled_by, self.held, self._resumed = '', None, False
        self._fills += 1

    def compute(self, unit: Unit, tokens: Sequence[Sequence[int]]) -> UnitKv:
        """Return the KV of a unit, computed from its segments' tokens from position 0 on.

        Raises RobotMemoryError if it is not finite.
        """
        everything = [token for segment in tokens for token in segment]
        with self.in_use():
            self._run(Prompt((), (), everything), FullRecompute())
            k, v = self._step(lambda: [p.to('cpu', copy=True) for p in self.arena.row(0)])
        if not all(bool(part.isfinite().all()) for part in (k, v)):
            raise RobotMemoryError(
                'KV of a unit must be finite (got NaN or infinity); it is not stored',
                ErrorCode.UNKNOWN,
            )
        return UnitKv(unit, k, v, tuple(map(len, tokens)))

    def _decode(
        self,
        held: RowPlan,
        stops: Collection[int],
        hidden: Tensor | None = None,
        choice: Choice = GREEDY,
    ) -> Iterator[int]:
        """Yield the tokens that follow; `hidden` is that of `fill`, for the first token."""
        if hidden is not None:
            held = self._step(partial(self._first, held, stops, hidden, choice))
            yield from held.plan.answer
        said, on_held = len(held.plan.answer), partial(setattr, self, 'held')
        most = self._config.max_answer_tokens
        decoding = Decoding(self._row, held, stops, most, on_held, choice)
        # A step of all rows advances only unfinished answers.
        try:
            for held in self._rows.decode(decoding, self._given_step):
                yield from held.plan.answer[said:]
                said = len(held.plan.answer)
        except RobotMemoryError:  # the content of the row is not finite
            self._forget()
            raise

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used

    def evictable(self) -> list[Evictable]:
        """Offer the content of the row between two uses.

        The cost is that of computing the plan in it; 0 for the KV of a unit, which is stored
        elsewhere, and for a failed prompt.
        """
        if self._using.locked() or not (used := self.bytes_used):
            return []
        cost = held.tokens * self._token_seconds if (held := self.held) else 0.0
        idle = time.monotonic() - self._used_at
        return [Evictable(used, cost, partial(self._evict, self._fills), idle)]

    def _evict(self, fill: int) -> int:
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
        """Raise AssertionError unless the use of the row is counted and reserved."""
        with self._computing:  # for a consistent view
            length, filled_by = int(self.arena.lengths[0, 0]), self._filled_by
            used, reserved = self.bytes_used, self.bytes_reserved
            promised = used <= reserved or self._using.locked()
        assert length <= self.arena.max_tokens, f'the planner row has {length} tokens'
        assert promised, f'{used} bytes of the planner row in use, {reserved} reserved'
        assert length or not filled_by, f'the planner row is empty, not {filled_by}'

    @torch.inference_mode()
    def _first(
        self, held: RowPlan, stops: Collection[int], hidden: Tensor, choice: Choice
    ) -> RowPlan:
        """Decode the first token from the hidden state [1, 1, width] before the final norm."""
        logits = self._model.logits(self._model.backbone.norm(hidden))[0]
        token = logits.argmax(-1)
        if not bool(logits.amax(-1).isfinite().all()):
            self._forget()
            raise not_finite()
        if choice.temperature:
            how = np.array([[choice.temperature], [choice.share(0)]])
            drawn = torch.from_numpy(how).to(logits.device)
            token = sample_tokens(logits, logits.amax(-1), token, *drawn)
        tokens = int(self.arena.lengths[0, 0])
        self.held = held.with_token(int(token), stops, self._config.max_answer_tokens, tokens)
        return self.held
