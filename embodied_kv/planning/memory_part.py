"""Which memory was known, and the planner's plan and row: memory's part of a capsule.

Knows sentences, tokens and the row's KV. Does not know nodes, or when a capsule is taken. Memory
itself is no part of it: what was learnt stays learnt, whatever goes back. What is resumed says
which sentences differ from those that were known, so that nobody takes the present for the past.

The planner's row is frozen with what it has said so far. Whoever asks the same question of the
same memory then gets the rest of the answer, and nothing of the prompt is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from heapq import nsmallest

import torch
from torch import Tensor

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import CapsuleError, facts_of
from embodied_kv.capsule.part import FrozenPart, Note
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import OverBudget
from embodied_kv.memory.sentence_log import sentences
from embodied_kv.planning.plan import PlanRecord, RowPlan
from embodied_kv.planning.planning import Planning
from embodied_kv.text import shown

TOLD = 12  # differences
ROW, SENTENCES = 'row', 'sentences'


class MemoryPart:
    """planning: whose memory it is. All of it runs on the engine's thread, and waits for none."""

    name, depth = 'memory', 'planner'

    def __init__(self, planning: Planning) -> None:
        self._planning = planning

    def buffers(self) -> list[Tensor]:
        """The planner's row; memory's KV lies in files of its own."""
        return self._planning.row.arena.memory

    def freeze(self) -> FrozenPart:
        """Every sentence; the last plan, token for token; the plan in the row.

        tensors: 'sentences', uint8 [bytes], as `SentenceLog`; 'row/k', 'row/v' [layers, kv_heads,
        tokens, head_dim], where a plan lies there.
        """
        last, row = self._planning.last, self._planning.row
        known = {SENTENCES: self._planning.memory.log.bytes}
        facts = {
            'planner': self._planning.fingerprint,
            'plan': last and facts_of(last),
        }
        if (held := row.held) is None:
            return FrozenPart(known, facts)
        kv = (part[:, 0, :, : held.tokens] for part in (row.arena.k, row.arena.v))
        return FrozenPart(known | frozen_kv.copied(ROW, *kv), {**facts, ROW: facts_of(held)})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError where it does not say what was known, or has half a row."""
        facts = frozen.facts
        if not isinstance(facts, dict) or not isinstance(facts.get('planner'), str):
            raise CapsuleError(
                'the capsule does not say which memory was known', ErrorCode.DAMAGED
            )
        known = frozen.tensors.get(SENTENCES)
        if known is None or known.dtype != torch.uint8 or known.dim() != 1:
            raise CapsuleError(
                'the capsule does not say which memory was known', ErrorCode.DAMAGED
            )
        _read_plan(facts.get('plan'))
        held = _read_row(facts)
        if held is not None and facts['planner'] == self._planning.fingerprint:
            row = self._planning.row
            frozen_kv.check_row(frozen, ROW, row.arena, held.tokens)
            try:
                row.check(held)
            except ValueError as error:
                raise CapsuleError(
                    f'the capsule has a damaged plan: {error}', ErrorCode.DAMAGED
                ) from error

    def resume(self, frozen: FrozenPart) -> Note:
        """The plans are those of then; memory is that of now.

        Returns what says how they differ; it reads every sentence of both.
        """
        facts, told = frozen.facts, []
        if facts['planner'] != self._planning.fingerprint:
            self._planning.last = None
            told.append('another planner made its last plan, which is not taken up')
        else:
            self._planning.last = _read_plan(facts.get('plan'))
            if (held := _read_row(facts)) is not None:
                if why := self._resume_row(frozen, held):
                    told.append(f"the planner's row {why}: the next plan computes its prompt anew")
        known = frozen.tensors[SENTENCES]
        return lambda: '; '.join([*told, *_moved(known, self._planning.memory.sentences)])

    def _resume_row(self, frozen: FrozenPart, held: RowPlan) -> str:
        """Why the row does not hold that plan now; '' where it does."""
        row = self._planning.row
        try:
            put = partial(frozen_kv.fill, frozen, ROW, row.arena, 0)
            return '' if row.resume(put, held) else 'is in use'
        except OverBudget:
            return 'has no room'


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What was learnt, changed and forgotten between two memories, a line each; by id.

    Of more than TOLD the others are counted. Ids are taken one by one: a call that sorts them all
    would keep the interpreter from every other thread for longer the larger memory is.
    """
    moved = [id for id, text in then.items() if now.get(id) != text]
    moved += [id for id in now if id not in then]
    for id in nsmallest(TOLD, moved):
        before, after = then.get(id), now.get(id)
        if before is None:
            yield f"'{shown(after)}' is new"
        elif after is None:
            yield f"'{shown(before)}' is not remembered"
        else:
            yield f"'{shown(after)}' was '{shown(before)}'"
    if len(moved) > TOLD:
        yield f'and {len(moved) - TOLD} more'


def _moved(known: Tensor, now: Mapping[str, str]) -> Iterator[str]:
    """How memory differs from the sentences in a log; nothing where it does not."""
    try:
        moved = '; '.join(differences(sentences(known), now))
    except (ValueError, TypeError, RecursionError):
        yield 'the list of what was known is damaged'
        return
    if moved:
        yield f'memory has moved on: {moved}'


def _read_plan(plan: Mapping | None) -> PlanRecord | None:
    try:
        if plan is None:
            return None
        return PlanRecord(
            str(plan['question']),
            str(plan['method']),
            tuple(str(key) for key in plan['units']),
            tuple(int(token) for token in plan['prompt']),
            tuple(int(token) for token in plan['answer']),
            bool(plan.get('over', True)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CapsuleError(
            f'the capsule has a damaged plan: {error!r}', ErrorCode.DAMAGED
        ) from error


def _read_row(facts: Mapping) -> RowPlan | None:
    """The plan that lay in the row, if one did."""
    if (row := facts.get(ROW)) is None:
        return None
    plan, tokens = (
        (row.get(name) for name in ('plan', 'tokens')) if isinstance(row, dict) else (0, 0)
    )
    plan = _read_plan(plan)
    if plan is None or not (plan.answer or plan.over) or type(tokens) is not int:
        raise CapsuleError(
            "the capsule has a damaged plan: that of the planner's row", ErrorCode.DAMAGED
        )
    absent, most = row.get('absent', []), len(plan.prompt)
    whole = isinstance(absent, list) and all(type(n) is int and 0 <= n < most for n in absent)
    held = RowPlan(plan, tokens, tuple(absent) if whole else (), bool(row.get('chosen')))
    # Beside what was read before the last token was said, that token, where <eos> followed it.
    read_last = held.read - plan.next_position
    if not whole or tokens < 1 or not (not plan.answer) <= read_last <= plan.over:
        raise CapsuleError(
            f'the capsule has a damaged plan: {tokens} tokens of its row', ErrorCode.DAMAGED
        )
    return held
