"""The vocabulary of the simulated table: its instructions, and the sentences of its memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from embodied_kv.demo.sim import table_memory
from embodied_kv.demo.sim.language import HELD, NARRATE, SUBTASK, SUBTASKS
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.scene_queries import query_table, query_target
from embodied_kv.demo.sim.table_memory import (
    MOVES,
    NAME,
    RECORD,
    ROBOT,
    TABLE,
    KnownTable,
    parse_task,
    read_table,
)
from embodied_kv.planning.domain import Draft, SceneQuery

DONE = SUBTASKS[Phase.HOLD]
PLACE = re.compile(r'(?:in|on|next to) the .+')
LIES = re.compile(rf'the (.+) is ({PLACE.pattern})')
HOLDS = re.compile(r'I hold the (.+)')
WHERE = re.compile(rf'Where is the ({NAME})\?')
INSIDE = re.compile(rf'What is (?:in|on) the ({NAME})\?')


class TabletopDomain:
    """The domain of coloured things on a table, in which the bundled planner was trained.

    Args:
        language: Not used: the policy narrates its subtask.
    """

    def __init__(self, language: object = None) -> None:
        pass

    def look(self, known: Sequence[Draft], instruction: str = '', mission: str = '') -> SceneQuery:
        """Return a query of the whole table, or of the target of an instruction and all places."""
        table = _table(known)
        return query_target(instruction, table) if instruction else query_table(table, mission)

    def refusal(self, instruction: str, known: Sequence[Draft]) -> str:
        """Return why an instruction is refused: it is unknown, or names an unseen thing."""
        return table_memory.refusal(instruction, _table(known))

    def confirms(self, instruction: str, known: Sequence[Draft]) -> bool:
        """Return whether the target lies where the instruction wanted it; True if unknown."""
        return table_memory.confirms(instruction, _table(known))

    def moves(self, known: Sequence[Draft]) -> tuple[int, ...]:
        """Return the numbers of the records of moves, newest first."""
        return _table(known).moves

    def record(self, instruction: str, done: bool, known: Sequence[Draft]) -> str:
        """Return the instruction, with the previous position of its thing."""
        if not done:
            return f'{instruction}, not finished'
        task = parse_task(instruction)
        if not known or task is None or task.family not in MOVES:
            return instruction
        return f'{instruction}, from the {_table(known).origin(task.target, TABLE)}'

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return the position after a step that no answer contains: next to a thing, or a side."""
        task = parse_task(instruction)
        if task is None or task.family not in ('next', 'push'):
            return []
        where = f'on the {task.side}' if task.side else f'next to the {task.place}'
        return [(task.target, 'object', f'{task.target}: {where}')]

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return the position of a thing, or the contents of a place or of the gripper."""
        question, answer = question.strip(), answer.strip()
        if question == HELD and answer:
            return [(ROBOT, 'agent', f'{ROBOT}: holds {answer}')]
        if match := WHERE.fullmatch(question):
            name = match[1]
            is_place = PLACE.fullmatch(answer) or answer == f'held by the {ROBOT}'
            return [(name, 'object', f'{name}: {answer}')] if is_place else []
        if (match := INSIDE.fullmatch(question)) and answer:
            return [(match[1], 'place', f'{match[1]}: holds {answer}')]
        return []

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return the position of the thing that the policy has moved."""
        if prompt != NARRATE:
            return []
        if match := LIES.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: {match[2]}')]
        if match := HOLDS.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: held by the {ROBOT}')]
        return []

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return the number of the record that moved a thing last."""
        match = RECORD.fullmatch(record[2])
        task = parse_task(match[2]) if match and match[3] else None
        if match is None or task is None or task.family not in MOVES:
            return []
        words = f'last move of the {task.target}: task {match[1]}'
        return [(f'last {task.target}', 'note', words)]

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the policy reports that its subtask is to hold still."""
        return prompt == SUBTASK and answer == DONE

    def names(self, segment: Draft) -> set[str]:
        """Return the things and places that a segment describes."""
        known = _table([segment])
        return {*known.where, *known.places}


def _table(known: Sequence[Draft]) -> KnownTable:
    return read_table(text for _, _, text in known)
