"""What to ask of a picture to know the table, and what the answers are worth remembering as.

A look is a generator: it yields questions, is sent their answers, and returns what is known then.
It believes what the policy says. Knows words. Does not know who answers, nor memory.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from embodied_kv.sim.language import HELD, in_or_on
from embodied_kv.sim.mission_memory import parse_task
from embodied_kv.sim.mission_table import KnownTable
from embodied_kv.sim.scene import COLOURS, MOVABLE, RECEPTACLES

Draft = tuple[str, str, str]  # id, kind, text of a segment
Look = Generator[list[str], list[str], 'Seen']

ROBOT = 'robot'
NAME = r'\w+ \w+'
WHERE = re.compile(rf'Where is the ({NAME})\?')
INSIDE = re.compile(rf'What is (?:in|on) the ({NAME})\?')
PLACE = re.compile(r'(?:in|on|next to) the .+')
TELLING = MOVABLE[:2]  # shapes that the policy learnt to miss where no thing has the colour


@dataclass(frozen=True)
class Seen:
    """drafts: what is to be remembered. gone: ids of things that are not there any more."""

    drafts: tuple[Draft, ...]
    gone: tuple[str, ...] = ()


def learnt(question: str, answer: str) -> list[Draft]:
    """What an answer tells of the table; nothing, if it tells nothing."""
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


def look_around(known: KnownTable) -> Look:
    """At the whole table: which colours there are, as which shapes, and where all of it is.

    A thing that is known keeps its name as long as its colour is seen: a shape is harder to tell.
    """
    pairs = [(colour, shape) for colour in COLOURS for shape in TELLING]
    seen = yield [f'Do you see the {colour} {shape}?' for colour, shape in pairs]
    missed = {pair for pair, answer in zip(pairs, seen, strict=True) if answer.strip() != 'yes'}
    colours = [c for c in COLOURS if not {(c, shape) for shape in TELLING} <= missed]
    names = {name.split()[0]: name for name in (*known.where, *known.places)}
    new = [colour for colour in colours if colour not in names]
    shapes = yield [f'What shape is the {colour} thing?' for colour in new]
    for colour, shape in zip(new, shapes, strict=True):
        if shape.strip() in (*MOVABLE, *RECEPTACLES):
            names[colour] = f'{colour} {shape.strip()}'
    there = [name for colour, name in names.items() if colour in colours]
    gone = tuple(name for colour, name in names.items() if colour not in colours)
    return (yield from _ask([*_about(there), HELD], gone))


def look_at(instruction: str, known: KnownTable) -> Look:
    """At what an instruction was about: its thing, where it was and where it should be."""
    task = parse_task(instruction)
    if task is None:
        return (yield from _ask([HELD]))
    lay = known.where.get(task.target, '')
    names = dict.fromkeys(name for name in (task.target, task.place, lay) if ' ' in name)
    return (yield from _ask([*_about([*names]), HELD]))


def _about(names: Sequence[str]) -> list[str]:
    """Where these things are, or what is in them."""
    return [
        f'What is {in_or_on(name)} the {name}?'
        if name.endswith(RECEPTACLES)
        else f'Where is the {name}?'
        for name in names
    ]


def _ask(questions: list[str], gone: tuple[str, ...] = ()) -> Look:
    answers = yield questions
    pairs = zip(questions, answers, strict=True)
    return Seen(tuple(draft for pair in pairs for draft in learnt(*pair)), gone)
