"""Planning with memory: stored segments with KV on the disk, and a planner that reads them.

A plan retrieves units, computes and stores the KV of those that have none (a static group jointly,
a dynamic segment alone), prefills a prompt from stored KV and from what the reuse method
recomputes, and decodes greedily. A group that has just turned static is served from the KV of its
segments until `warm` has computed the joint KV. KV that is lost in between, because a segment
changed or a file is damaged, costs a retry: after RETRIES the plan is computed from text.

One thread plans and warms. Any thread may change and query memory. Computation goes through `step`
in pieces, so that the engine thread can run it.

Source: KEEP, sections 4 and 5.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.encoder import Encoder, HashingEncoder
from embodied_kv.memory.groups import Transition
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.prefill import KvLostError, Step
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.segment import KINDS, RobotMemoryError, Unit, check_choice
from embodied_kv.memory.store import Change, MemoryStore
from embodied_kv.model.checkpoints.hub import Say, locate, silent
from embodied_kv.model.planner import Planner
from embodied_kv.model.planner_checkpoint import LoadedPlanner, bundled_planner
from embodied_kv.model.planner_prompts import question_words, segment_words
from embodied_kv.planning.config import MIB, MemoryParams, PlanningConfig
from embodied_kv.planning.costs import AUTO, FULL, PlanCosts
from embodied_kv.planning.plan import (
    BranchAnswer,
    Match,
    MemoryStats,
    Plan,
    PlanBranch,
    PlanRecord,
    RowPlan,
)
from embodied_kv.planning.planner_row import PlannerRow
from embodied_kv.planning.planner_rows import PlannerRows

log = logging.getLogger(__name__)

RETRIES = 3  # with stored KV, before the plan is computed from text
BATCH = 16  # units whose KV goes into one transaction


class PlannerPrompts:
    """The tokens of segments, questions and prompts.

    Each part is tokenised separately, so a segment has the same tokens in units and prompts.
    """

    def __init__(self, planner: LoadedPlanner) -> None:
        self._tokenizer, self._frame = planner.tokenizer, planner.frame
        self.head = [*planner.frame.head]

    def segment(self, text: str) -> list[int]:
        return self._tokenizer.encode(segment_words(text))

    def question(self, question: str) -> list[int]:
        """Return the tokens of a question. Raise ValueError if it is empty."""
        if not question.strip():
            raise ValueError('question must not be empty')
        tail = self._frame.tail
        return [*self._tokenizer.encode(question_words(question.strip(), bool(tail))), *tail]

    def unit(self, unit: Unit) -> list[list[int]]:
        """Return the tokens of each segment of a unit, in order."""
        return [self.segment(segment.text) for segment in unit.segments]

    def prompt(self, units: Iterable[Unit], question: list[int], loads: bool = False) -> Prompt:
        """Return the prompt of the units and the question; with `loads`, KV of units is read."""
        pieces = []
        for unit in units:
            offset = 0
            for id, tokens in zip(unit.ids, self.unit(unit), strict=True):
                pieces.append(Piece(id, tokens, unit.key if loads else '', offset))
                offset += len(tokens)
        return Prompt(self.head, tuple(pieces), question)


class Planning(AbstractContextManager['Planning']):
    """A planner with the memory of one folder, which is created if needed.

    Args:
        encoder: The text encoder of retrieval; None: hashing.
        step: Runs a piece of computation on the engine thread, and waits for it.
        renew: Discard KV of another planner and keep the segments.
        kv_budget: The budget that the row shares, and loaded KV if it is in the same memory.
        rows: Provides the row if several robots share the planner; None: a new arena.
        longest_step: Target duration of a step of computation, s.

    Raises:
        ValueError: The planner is recurrent, the parameters do not fit its row, or no row is free.
        RobotMemoryError: See `MemoryStore`.
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
        longest_step: float = math.inf,
    ) -> None:
        self.config = config or PlanningConfig()
        self._planner, self._prompts = planner, PlannerPrompts(planner)
        self._check_planner()
        self._lock, self._close = RLock(), ExitStack()
        self._plans = self._fresh = self._groups_lost = 0
        self.costs = PlanCosts()
        with ExitStack() as undo:
            # What KV depends on besides the text: the planner and the format of segments.
            words = f'{planner.fingerprint} {self._prompts.segment("A mug is in Place 1.")}'
            self.fingerprint = hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
            shared = kv_budget if planner.model.device.type == 'cpu' else None
            cache = self.config.host_cache_mib * MIB
            store = MemoryStore(folder, self.fingerprint, cache, renew, shared)
            undo.enter_context(store)
            self.memory = Memory(
                store,
                encoder or HashingEncoder(),
                lambda text: len(self._prompts.segment(text)),
                self.config.max_context_tokens,
                self.config.grouping,
            )
            self._forget_thin_units()
            rows, self._kv_budget = rows or PlannerRows(planner.model), kv_budget or KvBudget()
            self._new_row = partial(
                PlannerRow,
                planner.model,
                store.load_memory,
                self.config,
                step,
                self._kv_budget,
                rows,
                longest_step,
            )
            self.row = undo.enter_context(self._taken_row())
            self._close = undo.pop_all()
        self.last: PlanRecord | None = None  # the last complete plan; a restore replaces it
        self.pools = self.row, store.cache

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder and the row. No data is lost without this call."""
        self._close.close()

    def upsert(self, *segments: tuple[str, str, str]) -> tuple[Change, ...]:
        """Add or change segments given as (id, kind, text), atomically; see `Memory.upsert`."""
        with self._lock:
            return self.memory.upsert(*segments)

    def remove(self, id: str) -> Change:
        """Remove a segment. Raise RobotMemoryError if it does not exist."""
        with self._lock:
            return self.memory.remove(id)

    def advance(self, steps: int = 1) -> tuple[Transition, ...]:
        """Advance the world step, make unchanged groups static, and return their transitions.

        KV of former groups is removed. KV of single segments stays, because a group that turns
        dynamic needs it.
        """
        with self._lock:
            transitions = self.memory.advance(steps)
            self._groups_lost = self.memory.groups.counts['invalidated']
            if transitions:
                used, store = {unit.key for unit in self._readable_units()}, self.memory.store
                store.retain_kv(used)
            return transitions

    def query(self, question: str, k: int = 10, kind: str = '') -> tuple[Match, ...]:
        """Return the k segments that are most similar to a question, the most similar first.

        Without a question, return k segments in order of arrival. Raises RobotMemoryError for an
        unknown kind, and ValueError for a negative k.
        """
        if k < 0:
            raise ValueError(f'segments must be >= 0 (got {k})')
        if kind:
            check_choice('kind', kind, KINDS, RobotMemoryError)
        with self._lock:
            all_segments = ((segment, 0.0) for segment in self.memory.segments)
            found = self.memory.nearest(question) if question.strip() else all_segments
            wanted = ((s, score) for s, score in found if kind in ('', s.kind))
            group_of = self.memory.groups.of
            return tuple(Match(s, score, group_of(s.id).static) for s, score in islice(wanted, k))

    is_offered = True

    @property
    def has_room(self) -> bool:
        """Return whether KV can be stored without removing other KV."""
        return self.memory.store.has_room

    def tasks(self) -> list[tuple[str, int]]:
        """Return the ids and world steps of the task records."""
        return [(s.id, s.step) for s in self.memory.segments if s.kind == 'task']

    def stats(self) -> MemoryStats:
        with self._lock:
            store, groups = self.memory.store, self.memory.groups
            static = sum(group.static for group in groups)
            return MemoryStats(
                step=store.step,
                segments=len(self.memory),
                static=static,
                dynamic=len(groups) - static,
                units=len(groups.units()),
                kept=len(store.keys()),
                bytes=store.bytes,
                cached_bytes=store.cache.bytes,
                hits=store.cache.hits,
                misses=store.cache.misses,
                plans=self._plans,
                fresh=self._fresh,
                transitions={n: groups.counts[n] for n in ('static', 'dynamic', 'merged', 'left')},
                invalidated={'groups': self._groups_lost},
                chosen=dict(self.costs.chosen),
                seconds_saved=self.costs.seconds_saved,
            )

    def warm(self, most: int | None = None) -> int:
        """Compute missing KV of at most that many units, and return their number.

        Units longer than `max_context_tokens`, which may have been larger before, are skipped.
        With the method `auto` nothing is computed if plans are faster without stored KV.
        """
        units, longest = self.memory.units(), self.config.max_context_tokens
        chooses = self.config.reuse_method == AUTO
        if chooses and not self.costs.pays(min(self.memory.tokens(), longest)):
            return 0
        missing = self.memory.missing(units)
        sizes = {unit: sum(map(len, self._prompts.unit(unit))) for unit in missing}
        return self._compute([u for u, size in sizes.items() if size <= longest][:most])

    def plan(
        self,
        question: str,
        tokens: int | None = None,
        segments: int | None = None,
        method: str | None = None,
    ) -> Plan:
        """Return the planner's answer from the segments that are most similar to the question.

        `tokens`, `segments` and `method` replace the config's. Raises ValueError for an unknown
        method, and for an empty or too long question.
        """
        began = time.perf_counter()
        method = method or self.config.reuse_method
        check_choice('method', method, (AUTO, *self.row.methods))
        asked = self._prompts.question(question)
        tokens = min(
            self.config.max_context_tokens if tokens is None else tokens, self._room(asked)
        )
        segments = segments or self.config.max_context_segments or None
        ask = partial(self._plan, began, question, asked, tokens, segments, method)
        for retries in range(RETRIES):
            try:
                return ask(True, retries)
            except KvLostError as lost:
                log.info('plan is retried (reason: %s)', lost)
                try:
                    self.memory.store.forget_kv(lost.unit)
                except RobotMemoryError as fault:  # the disk is read-only
                    log.warning('plan is computed without stored KV (reason: %s)', fault)
                    break
            except RobotMemoryError as fault:  # KV could not be stored
                log.warning('plan is computed without stored KV (reason: %s)', fault)
                break
        return ask(False, RETRIES)

    def _plan(
        self,
        began: float,
        question: str,
        question_ids: list[int],
        tokens: int,
        segments: int | None,
        method: str,
        loads: bool,
        retries: int,
    ) -> Plan:
        """Make a plan; without `loads` all is computed, whatever the method."""
        units = self.memory.retrieve(question, tokens, segments)
        if method == AUTO:
            method = self.row.resumed_method(question) or self._choose(units, question_ids)
        loads = loads and self.row.method(method).loads
        units = self._available(units) if loads else units
        prompt = self._prompts.prompt(units, question_ids)
        keys, ids = tuple(unit.key for unit in units), tuple(prompt.ids.tolist())
        asked = PlanRecord(question, method, keys, ids)
        start = time.perf_counter()
        fresh = 0
        if loads and not self.row.can_continue(asked):
            fresh = self._compute(self.memory.missing(units))
            prompt = self._prompts.prompt(units, question_ids, loads=True)
        computed = time.perf_counter()
        with self.row.in_use():
            filled = time.perf_counter()
            decoding, work = self.row.answer(prompt, asked, self._planner.frame.stops)
            if any(work.computed) and (loads or method == FULL):
                self.costs.add(method, prompt.length, time.perf_counter() - filled)
            said = list(islice(decoding, 1))
            first = time.perf_counter()
            said += decoding
        self._plans += 1
        self.last = replace(asked, answer=tuple(said), over=True)
        return Plan(
            text=self._planner.tokenizer.decode(said).strip(),
            whole=len(said) < self.config.max_answer_tokens,
            method=method,
            segments=tuple(piece.segment for piece in prompt.pieces),
            tokens=prompt.length,
            memory=sum(len(piece.ids) for piece in prompt.pieces),
            computed=tuple(work.computed),
            loaded=tuple(work.loaded),
            fresh=fresh,
            retries=retries,
            hops=tuple(choice.hops for choice in work.chosen),
            seconds_fresh=computed - start,
            seconds_first_token=first - began,
            seconds=time.perf_counter() - began,
        )

    @contextmanager
    def _taken_row(self) -> Iterator[PlannerRow]:
        """Take a row of the planner; the budget counts it inside the block."""
        with ExitStack() as undo:
            row = self._new_row()
            undo.callback(row.close)
            self._kv_budget.join(row)
            undo.callback(self._kv_budget.leave, row)
            yield row

    def branch(
        self, put: Callable[[Arena], None], held: RowPlan, branches: Sequence[PlanBranch]
    ) -> list[BranchAnswer]:
        """Return the answers of several branches of a plan, made in a free row of the planner.

        The KV of the prompt is copied; another question is computed behind it. The robot's row,
        its plans and its memory do not change, and nothing is evicted.

        Args:
            put: Writes K and V of the plan into an arena of one row, on the engine thread.
            held: The plan, which `PlannerRow.check` has accepted.
            branches: What each branch answers, and how.

        Raises:
            ValueError: A branch does not fit the plan, the row or `max_answer_tokens`.
            CodedError: No row is free, or the budget has no room for it.
        """
        prompts = [self._branch_prompt(held, branch) for branch in branches]
        with ExitStack() as undo:
            try:
                row = undo.enter_context(self._taken_row())
            except ValueError as error:
                raise CodedError(
                    f'a free row of the planner is needed for branches of a plan: {error}; set '
                    'plan_forks of the node memory, or wait for the other fork',
                    ErrorCode.NO_ROOM,
                ) from error
            said = [
                row.branch(
                    partial(put, row.arena), held, prompt, self._planner.frame.stops, branch.choice
                )
                for branch, prompt in zip(branches, prompts, strict=True)
            ]
        most, decode = self.config.max_answer_tokens, self._planner.tokenizer.decode
        return [BranchAnswer(decode(ids).strip(), len(ids) < most) for ids in said]

    def _branch_prompt(self, held: RowPlan, branch: PlanBranch) -> list[int]:
        """Return the tokens of the prompt of a branch; [] if it continues the plan's answer."""
        plan, most, prompt = held.plan, self.config.max_answer_tokens, [*held.plan.prompt]
        if branch.question:
            own = self._prompts.question(plan.question)
            if prompt[-len(own) :] != own:
                raise CodedError(
                    'the prompt of the plan must end with its question (got another end); take a '
                    'new capsule',
                    ErrorCode.DAMAGED,
                )
            prompt[-len(own) :] = self._prompts.question(branch.question)
        elif not held.fits(most):
            raise CodedError(
                f'max_answer_tokens must be that of the plan in the capsule (got {most}, and an '
                f'answer of {len(plan.answer)} tokens); set it back, or give a question',
                ErrorCode.MISMATCH,
            )
        elif plan.over and branch.choice.temperature:
            raise ValueError(
                'the answer of the plan must be incomplete to be sampled further (got a complete '
                'one); give the question that is to be answered again'
            )
        if len(prompt) + most > (longest := self.row.arena.max_tokens):
            raise ValueError(
                f'prompt and answer must fit a row of {longest} tokens (got {len(prompt)} and '
                f'{most}); shorten the question'
            )
        return prompt if branch.question else []

    def _choose(self, units: Sequence[Unit], question_ids: Sequence[int]) -> str:
        """Return the method of a plan of these units by the costs of earlier plans."""
        missing = self.memory.missing(units)
        units_tokens, missing_tokens = (
            sum(len(ids) for unit in some for ids in self._prompts.unit(unit))
            for some in (units, missing)
        )
        tokens = len(self._prompts.head) + units_tokens + len(question_ids)
        return self.costs.choose(tokens, missing_tokens)

    def _room(self, asked: Sequence[int]) -> int:
        """Return the number of tokens that a prompt has for memory."""
        row = self.row.arena.max_tokens
        room = row - len(self._prompts.head) - len(asked) - self.config.max_answer_tokens
        if room < 0:
            raise ValueError(
                f'question and answer must fit a row of {row} tokens (got a question of '
                f'{len(asked)}); shorten the question'
            )
        return room

    def _compute(self, units: Sequence[Unit]) -> int:
        """Compute and store the KV of units, and return their number."""
        for at in range(0, len(units), BATCH):
            made = (self.row.compute(u, self._prompts.unit(u)) for u in units[at : at + BATCH])
            self.memory.store.store_kv(*made)
        self._fresh += len(units)
        return len(units)

    def _check_planner(self) -> None:
        model, config = self._planner.model, self.config
        if not isinstance(model, Planner):
            raise ValueError(
                f'planner must be a {Planner.__name__} (got {type(model).__name__}); the state of '
                'a recurrent planner fits no other position of a prompt'
            )
        row = model.config.max_tokens
        context, answer = config.max_context_tokens, config.max_answer_tokens
        if len(self._prompts.head) + context + answer >= row:
            raise ValueError(
                'max_context_tokens and max_answer_tokens must leave room for a question in a row '
                f'of {row} with {len(self._prompts.head)} tokens of introduction (got {context} '
                f'and {answer}); lower one of them'
            )

    def _readable_units(self) -> tuple[Unit, ...]:
        """Return the units whose KV plans may load: those of the groups, and single segments."""
        units = self.memory.units()
        return (*units, *(Unit((segment,)) for unit in units for segment in unit.segments))

    def _forget_thin_units(self) -> None:
        """Remove stored KV except that of readable units with all of their tokens.

        Earlier versions stored a part of a unit's tokens if they were configured to.
        """
        store, count = self.memory.store, self.memory.groups.tokens
        stored = [unit for unit in self._readable_units() if unit.key in store]
        whole = {u.key for u in stored if sum(store.lengths(u.key)) == sum(map(count, u.ids))}
        store.retain_kv(whole)

    def _available(self, units: Sequence[Unit]) -> tuple[Unit, ...]:
        """Replace units without KV by their segments, if all of these have KV."""
        found: list[Unit] = []
        for unit in units:
            singles = [Unit((segment,), unit.group, unit.score) for segment in unit.segments]
            jointly = not self.memory.missing([unit]) or self.memory.missing(singles)
            found += [unit] if jointly else singles
        return tuple(found)


@contextmanager
def open_planning(
    planner: LoadedPlanner,
    encoder: Encoder,
    params: MemoryParams,
    config: PlanningConfig,
    robot: str,
    step: Step,
    kv_budget: KvBudget | None = None,
    rows: PlannerRows | None = None,
    longest_step: float = math.inf,
) -> Iterator[Planning]:
    """Open the memory of one robot in the folder of its namespace; see `Planning`."""
    with ExitStack() as undo:
        root = params.storage_directory or undo.enter_context(TemporaryDirectory())
        folder, renew = Path(root).expanduser() / robot.strip('/'), params.discard_foreign_kv
        made = Planning(
            planner, folder, config, encoder, step, renew, kv_budget, rows, longest_step
        )
        planning = undo.enter_context(made)
        planning.memory.store.limit(params.disk_mib * MIB)
        yield planning


def planner_folder(planner: str, name: str, say: Say = silent, offline: str = '') -> Path:
    """Return the folder of `planner`, or else of the bundled planner `name` of a contract.

    Args:
        planner: A folder, or owner/name@revision on the Hugging Face hub; '' for the bundled one.
        name: The bundled planner.
        say: Receives the commit of a planner of the hub.
        offline: Reason to fetch nothing and use only the cache; '' to allow fetching.

    Raises:
        ValueError: Both are empty, or there is no such planner.
    """
    if planner:
        return locate(Path(planner).expanduser(), say, offline, 'planner').path
    if not name:
        raise ValueError(
            'language.planner of the contract must not be empty; set it, or the parameter planner'
        )
    return Path(bundled_planner(name))
