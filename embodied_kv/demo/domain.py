"""The vocabulary of the simulated table: its instructions, and the sentences of its memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from embodied_kv.demo.sim.expert import Phase
from embodied_kv.demo.sim.eyes import ROBOT, beside, learnt, look_around, look_at
from embodied_kv.demo.sim.language import NARRATE, SUBTASK, SUBTASKS
from embodied_kv.demo.sim.mission_memory import RECORD, parse_task, read_table, refusal
from embodied_kv.demo.sim.mission_table import MOVES, TABLE, KnownTable
from embodied_kv.planning.domain import Draft, SceneQuery

DONE = SUBTASKS[Phase.HOLD]
LIES = re.compile(r'the (.+) is ((?:in|on|next to) the .+)')
HOLDS = re.compile(r'I hold the (.+)')


class TabletopDomain:
    """Plans and remembers coloured things on a table, as the bundled planner was trained to.

    Args:
        language: Not used: the policy narrates its subtask.
    """

    def __init__(self, language: object = None) -> None:
        pass

    def look(self, known: Sequence[Draft], instruction: str = '') -> SceneQuery:
        """Look at the whole table, or at the thing of an instruction and all places."""
        table = _table(known)
        return look_at(instruction, table) if instruction else look_around(table)

    def refusal(self, instruction: str, known: Sequence[Draft]) -> str:
        """Refuse what is no instruction of this table, and things that nobody has seen."""
        return refusal(instruction, _table(known))

    def moves(self, known: Sequence[Draft]) -> tuple[int, ...]:
        """Return the numbers of the records of moves, newest first."""
        return _table(known).moves

    def record(self, instruction: str, done: bool, known: Sequence[Draft]) -> str:
        """Return the instruction, with the place where its thing lay before."""
        if not done:
            return f'{instruction}, not finished'
        task = parse_task(instruction)
        if not known or task is None or task.family not in MOVES:
            return instruction
        return f'{instruction}, from the {_table(known).origin(task.target, TABLE)}'

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return next to what a thing lies now, or at which side."""
        return beside(instruction)

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return where a thing is, what a place holds, or what the robot holds."""
        return learnt(question, answer)

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return where the thing is that the policy has moved."""
        if prompt != NARRATE:
            return []
        if match := LIES.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: {match[2]}')]
        if match := HOLDS.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: held by the {ROBOT}')]
        return []

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return which record moved a thing last."""
        match = RECORD.fullmatch(record[2])
        task = parse_task(match[2]) if match and match[3] else None
        if task is None or task.family not in MOVES:
            return []
        words = f'last move of the {task.target}: task {match[1]}'
        return [(f'last {task.target}', 'note', words)]

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the policy says that its subtask is to hold still."""
        return prompt == SUBTASK and answer == DONE

    def names(self, segment: Draft) -> set[str]:
        """Return the things and places that a segment is about."""
        told = _table([segment])
        return {*told.where, *told.places}


def _table(known: Sequence[Draft]) -> KnownTable:
    return read_table(text for _, _, text in known)
