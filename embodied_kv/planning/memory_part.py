"""The part of a capsule for memory: the known sentences, the last plan, and the planner's row.

Memory itself is not restored, so no knowledge is lost. A restore reports which sentences have
changed since the capsule, so that the client does not take the present memory for the past one.

The planner's row is stored with its answer so far. After a restore, the same question to the same
memory continues that answer without computing the prompt again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any

import torch
from torch import Tensor

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import CapsuleError, Fact, FrozenPart, Note, facts_of
from embodied_kv.errors import ErrorCode, code_of
from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.memory.sentence_log import sentences
from embodied_kv.planning.plan import BranchAnswer, PlanBranch, PlanRecord, RowPlan
from embodied_kv.planning.planning import Planning
from embodied_kv.text import shown

MAX_DIFFERENCES = 12  # maximum number of differences in a report
ROW, SENTENCES = 'row', 'sentences'


class MemoryPart:
    """The memory of a robot as part of a capsule.

    All methods but `branch` run on the engine thread.
    """

    name, depth = 'memory', 'planner'

    def __init__(self, planning: Planning) -> None:
        self._planning = planning

    def freeze(self) -> FrozenPart:
        """Return the sentences, the last plan, and the plan in the row.

        The tensors are 'sentences', uint8 [bytes] of a `SentenceLog`, and, with a plan in the row,
        'row/k' and 'row/v' [layers, kv_heads, tokens, head_dim].
        """
        last, row = self._planning.last, self._planning.row
        known = {SENTENCES: self._planning.memory.log.bytes}
        plan = None if last is None else facts_of(last)
        facts = {'planner': self._planning.fingerprint, 'plan': plan}
        if (held := row.held) is None:
            return FrozenPart(known, facts)
        kv = (part[:, 0, :, : held.tokens] for part in (row.arena.k, row.arena.v))
        return FrozenPart(known | frozen_kv.copied(ROW, *kv), {**facts, ROW: facts_of(held)})

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError unless the sentences, the plan and the row are valid."""
        planner, known = frozen.fact('planner'), frozen.tensors.get(SENTENCES)
        is_text = isinstance(planner, str)
        if not is_text or known is None or known.dtype != torch.uint8 or known.dim() != 1:
            raise CapsuleError('the capsule has no list of known sentences', ErrorCode.DAMAGED)
        _read_plan(frozen.fact('plan'))
        held = _read_row(frozen.fact(ROW))
        if held is not None and planner == self._planning.fingerprint:
            row = self._planning.row
            frozen_kv.check_row(frozen, ROW, row.arena, held.tokens)
            try:
                row.check(held)
            except ValueError as error:
                raise _damaged(error) from error

    def resume(self, frozen: FrozenPart) -> Note:
        """Restore the plans, and return a function that reports how memory has changed since."""
        told = []
        if frozen.fact('planner') != self._planning.fingerprint:
            self._planning.last = None
            told.append('the last plan is of another planner and is not restored')
        else:
            self._planning.last = _read_plan(frozen.fact('plan'))
            if (held := _read_row(frozen.fact(ROW))) is not None:
                row, why = self._planning.row, 'is in use'
                try:
                    put = partial(frozen_kv.fill, frozen, ROW, row.arena, 0)
                    why = '' if row.resume(put, held) else why
                except OverBudgetError:
                    why = 'has no room'
                if why:
                    told.append(f"the planner's row {why}: the next plan computes it again")
        known = frozen.tensors[SENTENCES]
        return lambda: '; '.join([*told, *_moved(known, self._planning.memory.sentences)])

    def branch(self, frozen: FrozenPart, branches: Sequence[PlanBranch]) -> list[BranchAnswer]:
        """Return the answers of several branches of the frozen plan; see `Planning.branch`.

        It must not run on the engine thread, which computes the answers in short steps. Raises
        CapsuleError.
        """
        self.check_resumable(frozen)
        if frozen.fact('planner') != self._planning.fingerprint:
            raise CapsuleError(
                'the planner must be that of the capsule to continue its plan (got another one); '
                'load that planner, or take a new capsule',
                ErrorCode.MISMATCH,
            )
        if (held := _read_row(frozen.fact(ROW))) is None:
            raise CapsuleError(
                "the capsule must have a plan in the planner's row (got none); request a plan, "
                'and take a new capsule',
                ErrorCode.NOT_FOUND,
            )
        try:
            return self._planning.branch(
                lambda arena: frozen_kv.fill(frozen, ROW, arena, 0), held, branches
            )
        except ValueError as error:
            raise CapsuleError(str(error), code_of(error)) from error


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each of the first changes between two memories, and count the others.

    Ids are compared one by one: sorting them all would block other threads for long.
    """
    moved = [id for id, text in then.items() if now.get(id) != text]
    moved += [id for id in now if id not in then]
    for id in nsmallest(MAX_DIFFERENCES, moved):
        before, after = then.get(id), now.get(id)
        if before is None:
            yield f"'{shown(after)}' is new"
        elif after is None:
            yield f"'{shown(before)}' was removed"
        else:
            yield f"'{shown(after)}' was '{shown(before)}'"
    if len(moved) > MAX_DIFFERENCES:
        yield f'and {len(moved) - MAX_DIFFERENCES} more'


def _moved(known: Tensor, now: Mapping[str, str]) -> Iterator[str]:
    try:
        moved = '; '.join(differences(sentences(known), now))
    except (ValueError, TypeError, RecursionError):
        yield 'the list of known sentences is damaged'
        return
    if moved:
        yield f'memory has changed since: {moved}'


def _read_plan(plan: Any) -> PlanRecord | None:
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
        raise _damaged(repr(error)) from error


def _read_row(row: Fact) -> RowPlan | None:
    """Return the plan in the row, if there is one."""
    if row is None:
        return None
    if not isinstance(row, dict) or type(tokens := row.get('tokens')) is not int:
        raise _damaged("that of the planner's row")
    plan = _read_plan(row.get('plan'))
    if plan is None or not (plan.answer or plan.over):
        raise _damaged("that of the planner's row")
    # The last token of the answer has been computed only if <eos> followed it.
    read_last = tokens - plan.next_position
    if tokens < 1 or not (not plan.answer) <= read_last <= plan.over:
        raise _damaged(f'{tokens} tokens of its row')
    return RowPlan(plan, tokens)


def _damaged(reason: object) -> CapsuleError:
    return CapsuleError(f'the capsule has a damaged plan: {reason}', ErrorCode.DAMAGED)
