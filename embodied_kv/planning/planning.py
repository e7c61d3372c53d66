"""Planning with memory: what was remembered, as KV that outlives the process, and a planner on it.

Knows a planner, its row, a memory, and in which order they work. Does not know sensors, topics or
what a segment means.

A plan retrieves units, computes the KV of those that have none yet (a static group jointly, a
dynamic segment alone) and keeps it, prefills a prompt from stored KV and from what the method
computes again, and decodes greedily. A group that has just turned static is served from its
segments' own KV until `warm` has computed the joint one. KV that goes in between, because somebody
changed a segment or a file is damaged, costs a retry, never the plan: at last everything is
computed from its text.

One thread plans and warms. Any thread may change and ask memory meanwhile. Computation goes
through `step` piece by piece, so it can be handed to the one thread that computes.

Source: KEEP, sections 4 and 5.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock

from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.encoder import Encoder, HashingEncoder
from embodied_kv.memory.group import Transition
from embodied_kv.memory.invalidation import Invalidation
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.prefill import KvLost, Step
from embodied_kv.memory.segment import KINDS, MemoryFault
from embodied_kv.memory.store import Change, MemoryStore
from embodied_kv.memory.unit import Unit
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.planning.checks import check_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.plan import Match, MemoryStats, Plan, PlanRecord, PlanRequest
from embodied_kv.planning.planner_row import PlannerRow
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.prompts import PlannerPrompts, memory_fingerprint
from embodied_kv.planning.statistics import memory_stats
from embodied_kv.planning.stored import available, keep_whole, kept_tokens, readable_units

log = logging.getLogger(__name__)

RETRIES = 3  # with stored KV, before all is computed from its text
BATCH = 16  # units whose KV goes into one transaction


class Planning:
    """Over a folder, which is created where it does not exist; `close` lets another open it.

    encoder: of meaning, hashing where none is given. renew: where the folder holds the KV of
    another planner, keep the segments and drop that. step: runs each piece of computation.
    kv_budget: whose budget its row shares, and loaded KV where that lies in the same memory. rows:
    of this planner, where others plan beside it; one of them is taken. row: where prompts and
    answers lie.

    Raises ValueError for a recurrent planner, for numbers that do not fit its row, and where no
    row is left; MemoryFault for a folder of another planner, one that is open already, and what
    cannot be read or written.
    """

    def __init__(
        self,
        planner: LoadedPlanner,
        folder: str | Path,
        config: PlanningConfig | None = None,
        encoder: Encoder | None = None,
        step: Step = lambda work: work(),
        renew: bool = False,
        kv_budget: KvBudget | None = None,
        rows: PlannerRows | None = None,
    ) -> None:
        self.config = config or PlanningConfig()
        self._planner, self._prompts = planner, PlannerPrompts(planner.tokenizer)
        check_planner(planner.model, self.config, len(self._prompts.head))
        self._lock, self._close = RLock(), ExitStack()
        self._plans = self._fresh = self._groups_lost = 0
        with ExitStack() as undo:
            self.fingerprint = memory_fingerprint(planner, self._prompts)
            shared = kv_budget if planner.model.device.type == 'cpu' else None
            store = MemoryStore(folder, self.fingerprint, self.config.cache_bytes, renew, shared)
            undo.enter_context(store)
            self.memory = Memory(
                store,
                encoder or HashingEncoder(),
                self._prompts.count,
                self.config.tokens,
                self.config.grouping,
            )
            if self.config.unit_keep_ratio == 1:
                keep_whole(self.memory)
            kv_budget = kv_budget or KvBudget()
            self.row = PlannerRow(
                planner.model, store.load_memory, self.config, step, kv_budget, rows
            )
            undo.callback(self.row.close)
            kv_budget.join(self.row)
            undo.callback(kv_budget.leave, self.row)
            self._close = undo.pop_all()
        self.last: PlanRecord | None = None  # plan that ended; a capsule may put another one here
        self.pools = self.row, store.cache  # that hold KV
        self._invalidation = Invalidation()
        for segment in store.list():
            self._invalidation.note(segment.id, self.memory.groups.tokens(segment.id))
        self._invalidation.end()

    def __enter__(self) -> Planning:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing that was remembered is lost without it."""
        self._close.close()

    # ------------------------------------------------------------------ memory, from any thread

    def upsert(self, *segments: tuple[str, str, str]) -> tuple[Change, ...]:
        """Adds or changes segments given as (id, kind, text), all or none of them.

        Raises MemoryFault for what is no segment or too long a one, and an id that comes twice.
        """
        with self._lock:
            changes = self.memory.upsert(*segments)
            for change in changes:
                if change.changed:
                    id = change.segment.id
                    self._invalidation.note(id, self.memory.groups.tokens(id))
            return changes

    def remove(self, id: str) -> Change:
        """Raises MemoryFault if there is no such segment."""
        with self._lock:
            change = self.memory.remove(id)
            self._invalidation.note(id, None)
            return change

    def advance(self, steps: int = 1) -> tuple[Transition, ...]:
        """The world went on: groups that were left alone long enough turn static.

        KV of groups that are no more is dropped; that of single segments stays, for a group that
        turns dynamic needs it.
        """
        with self._lock:
            transitions = self.memory.advance(steps)
            self._invalidation.end()
            self._groups_lost = self.memory.groups.counts['invalidated']
            if transitions:
                used = {unit.key for unit in readable_units(self.memory)}
                store = self.memory.store
                store.forget(*(key for key in store.keys() if key not in used))
            return transitions

    def query(self, question: str, k: int = 10, kind: str = '') -> tuple[Match, ...]:
        """The k segments that are nearest to a question in meaning, the nearest first.

        Without a question, k segments as they came. kind: only of that kind. Raises MemoryFault
        for an unknown kind, ValueError for a negative k.
        """
        if k < 0:
            raise ValueError(f'{k} segments cannot be shown')
        if kind and kind not in KINDS:
            raise MemoryFault(f'no kind {kind[:80]!r}; there are: {", ".join(KINDS)}')
        with self._lock:
            if question.strip():
                found = self.memory.nearest(question)
            else:
                found = [(segment, 0.0) for segment in self.memory.store.list()]
            wanted = ((s, score) for s, score in found if kind in ('', s.kind))
            group_of = self.memory.groups.of
            return tuple(Match(s, score, group_of(s.id).static) for s, score in islice(wanted, k))

    is_offered = True

    @property
    def has_room(self) -> bool:
        """Whether KV can be kept without giving up other KV."""
        return self.memory.store.has_room

    def tasks(self) -> list[tuple[str, int]]:
        """Return the ids of the records of tasks, with the steps of the world of each."""
        return [(segment.id, segment.step) for segment in self.memory.store.list('task')]

    def stats(self) -> MemoryStats:
        """As it is now."""
        with self._lock:
            lost = {'groups': self._groups_lost, **self._invalidation.lost}
            return memory_stats(self.memory, self._plans, self._fresh, lost)

    # ------------------------------------------------------------------ plans, from one thread

    def warm(self, most: int | None = None) -> int:
        """Computes KV that is missing, of so many units at most -> of how many it did.

        What is too long to come into view, since it was remembered with other numbers, is left.
        """
        missing = self.memory.missing(self.memory.units())
        return self._compute([unit for unit in missing if self._fits(unit)][:most])

    def plan(
        self,
        question: str,
        tokens: int | None = None,
        segments: int | None = None,
        method: str | None = None,
    ) -> Plan:
        """The planner's answer, with what is nearest to the question in view.

        tokens, segments, method: instead of the config's. With an empty memory nothing is in view.
        Raises ValueError for an unknown method, for no question, and for one that is too long.
        """
        began = time.perf_counter()
        method = method or self.config.method
        loads = self.row.method(method).loads
        asked = self._prompts.question(question)
        tokens = min(self.config.tokens if tokens is None else tokens, self._room(asked))
        segments = segments or self.config.segments or None
        ask = PlanRequest(began, question, asked, tokens, segments, method)
        for retries in range(RETRIES):
            try:
                return self._plan(ask, loads, retries)
            except KvLost as lost:
                log.info('planning once more: %s', lost)
                self.memory.store.forget(lost.unit)
            except MemoryFault as fault:  # KV that cannot be kept
                log.warning('planning without stored KV: %s', fault)
                break
        return self._plan(ask, False, RETRIES)

    def _plan(self, ask: PlanRequest, loads: bool, retries: int) -> Plan:
        """loads: whether stored KV is read; else all is computed, whatever the method."""
        units = self.memory.retrieve(ask.question, ask.tokens, ask.segments)
        units = available(units, self.memory) if loads else units
        prompt = self._prompts.prompt(units, ask.ids)
        keys, ids = tuple(unit.key for unit in units), tuple(prompt.ids.tolist())
        asked = PlanRecord(ask.question, ask.method, keys, ids)
        start = time.perf_counter()
        needs = loads and not self.row.goes_on(asked)
        fresh = self._compute(self.memory.missing(units)) if needs else 0
        if needs:
            kept = kept_tokens(units, self.memory.store, self._prompts, ask.method)
            prompt = self._prompts.prompt(units, ask.ids, kept)
        computed = time.perf_counter()
        with self.row.in_use():
            saying, work = self.row.answer(prompt, asked, self._planner.tokenizer.eos)
            said = list(islice(saying, 1))
            first = time.perf_counter()
            said += saying
        self._plans += 1
        self.last = replace(asked, answer=tuple(said), over=True)
        return Plan(
            text=self._planner.tokenizer.decode(said).strip(),
            whole=len(said) < self.config.answer_tokens,
            method=ask.method,
            segments=tuple(piece.segment for piece in prompt.pieces),
            tokens=prompt.length,
            memory=sum(len(piece.ids) for piece in prompt.pieces),
            computed=tuple(work.computed),
            loaded=tuple(work.loaded),
            fresh=fresh,
            retries=retries,
            hops=tuple(choice.hops for choice in work.chosen),
            seconds_fresh=computed - start,
            seconds_first_token=first - ask.began,
            seconds=time.perf_counter() - ask.began,
            timeline=work.timeline,
        )

    def _room(self, asked: Sequence[int]) -> int:
        """Tokens that a prompt has left for memory."""
        row = self.row.arena.max_tokens
        room = row - len(self._prompts.head) - len(asked) - self.config.answer_tokens
        if room < 0:
            raise ValueError(
                f'a question of {len(asked)} tokens and its answer do not fit a row of {row}: ask '
                'in fewer words'
            )
        return room

    def _fits(self, unit: Unit) -> bool:
        return sum(map(len, self._prompts.unit(unit))) <= self.config.tokens

    def _compute(self, units: Sequence[Unit]) -> int:
        """The KV of units, kept as far as nothing of them changed meanwhile."""
        for at in range(0, len(units), BATCH):
            made = (self.row.compute(u, self._prompts.unit(u)) for u in units[at : at + BATCH])
            self.memory.store.keep(*made)
        self._fresh += len(units)
        return len(units)
