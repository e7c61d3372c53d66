"""Which memory was known, and what the planner said of it: memory's part of a capsule.

Knows sentences and tokens. Does not know nodes, or when a capsule is taken. Memory itself is no
part of it: what was learnt stays learnt, whatever goes back. What is resumed says which sentences
differ from those that were known, so that nobody takes the present for the past.

The planner's row is no part of it either: the next plan makes it again, from memory and question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from embodied_kv.capsule.capsule import CapsuleError, facts_of
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.planning.plan import PlanRecord
from embodied_kv.planning.planning import Planning
from embodied_kv.text import shown

TOLD = 12  # differences


class MemoryPart:
    """planning: whose memory it is. All of it runs on the engine's thread, and waits for none."""

    name, depth = 'memory', 'planner'

    def __init__(self, planning: Planning) -> None:
        self._planning = planning

    def buffers(self) -> tuple:
        """None: memory's KV lies in files of its own."""
        return ()

    def freeze(self) -> FrozenPart:
        """Every sentence by its id, and the last plan that was made, token for token."""
        last = self._planning.last
        facts = {
            'planner': self._planning.fingerprint,
            'sentences': self._planning.memory.sentences,
            'plan': last and facts_of(last),
        }
        return FrozenPart(facts=facts)

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError where it does not say what was known."""
        facts = frozen.facts
        known = facts.get('sentences') if isinstance(facts, dict) else None
        whole = isinstance(known, dict) and isinstance(facts.get('planner'), str)
        if not whole or not all(isinstance(text, str) for text in known.values()):
            raise CapsuleError('the capsule does not say which memory was known')
        _read(facts)

    def resume(self, frozen: FrozenPart) -> str:
        """The last plan is that of then; memory is that of now. How they differ, in words."""
        facts = frozen.facts
        if facts['planner'] != self._planning.fingerprint:
            self._planning.last = None
            told = ['another planner made its last plan, which is not taken up']
        else:
            self._planning.last, told = _read(facts), []
        moved = list(differences(facts['sentences'], self._planning.memory.sentences))
        if moved:
            more = f'; and {len(moved) - TOLD} more' if len(moved) > TOLD else ''
            told.append(f'memory has moved on: {"; ".join(moved[:TOLD])}{more}')
        return '; '.join(told)


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What was learnt, changed and forgotten between two memories, a line each; by id."""
    for id in sorted({*then, *now}):
        before, after = then.get(id), now.get(id)
        if before == after:
            continue
        if before is None:
            yield f"'{shown(after)}' is new"
        elif after is None:
            yield f"'{shown(before)}' is not remembered"
        else:
            yield f"'{shown(after)}' was '{shown(before)}'"


def _read(facts: Mapping) -> PlanRecord | None:
    plan = facts.get('plan')
    try:
        if plan is None:
            return None
        return PlanRecord(
            str(plan['question']),
            str(plan['method']),
            tuple(str(key) for key in plan['units']),
            tuple(int(token) for token in plan['prompt']),
            tuple(int(token) for token in plan['answer']),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CapsuleError(f'the capsule has a damaged plan: {error!r}') from error
