"""What to ask of a picture to know the table, and what the answers are worth remembering as.

A look is a generator: it yields questions, is sent their answers, and returns what is known then.
It believes what the policy says. Knows words. Does not know who answers, nor memory.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from embodied_kv.sim.language import HELD, in_or_on
from embodied_kv.sim.mission_memory import parse_task, read_table
from embodied_kv.sim.mission_table import TABLE, KnownTable
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


def beside(instruction: str) -> list[Draft]:
    """What is so once an instruction is done, and no answer tells: next to what, at which side."""
    task = parse_task(instruction)
    if task is None or task.family not in ('next', 'push'):
        return []
    where = f'on the {task.side}' if task.side else f'next to the {task.place}'
    return [(task.target, 'object', f'{task.target}: {where}')]


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
    return (yield from _ask(there, known, gone))


def look_at(instruction: str, known: KnownTable) -> Look:
    """At what an instruction was about: its thing, and all places."""
    task = parse_task(instruction)
    things = [task.target] if task is not None else []
    return (yield from _ask([*things, *known.places], known))


def _ask(names: Sequence[str], known: KnownTable, gone: tuple[str, ...] = ()) -> Look:
    """Where these things are, what lies in these places, and what is held.

    An answer to the one has to agree with those to the other, else what was known stays: one
    mistake in twenty would else be remembered of every table of five things.
    """
    places = [name for name in names if name.endswith(RECEPTACLES)]
    things = [name for name in names if name not in places]
    answers = yield [
        *(f'Where is the {name}?' for name in things),
        *(f'What is {in_or_on(name)} the {name}?' for name in places),
        HELD,
    ]
    where, inside, (held,) = _split(answers, len(things), len(places))
    drafts = []
    for name, answer in zip(things, where, strict=True):
        new = name not in known.where
        if known.beside.get(name) and answer.strip() == f'on the {TABLE}':
            continue  # which is as true of what is next to something, or at a side
        if new or _agree(name, answer, dict(zip(places, inside, strict=True)), held):
            drafts += learnt(f'Where is the {name}?', answer)
    lie = dict(known.where) | {name: _place(text) for name, _, text in drafts}
    lie = {name: place for name, place in lie.items() if name not in gone}
    for name in places:
        holds = ' and '.join(f'the {thing}' for thing in sorted(lie) if lie[thing] == name)
        drafts.append((name, 'place', f'{name}: holds {holds or "nothing"}'))
    held = next((f'the {name}' for name, place in lie.items() if place == ROBOT), 'nothing')
    return Seen((*drafts, (ROBOT, 'agent', f'{ROBOT}: holds {held}')), gone)


def _split(answers: Sequence[str], *counts: int) -> list[Sequence[str]]:
    """The first so many answers, the next so many, …, and the rest."""
    parts, begin = [], 0
    for count in counts:
        parts.append(answers[begin : begin + count])
        begin += count
    return [*parts, answers[begin:]]


def _agree(name: str, where: str, inside: Mapping[str, str], held: str) -> bool:
    """Whether what places and gripper are said to hold is what the thing's own answer says."""
    found = {place for place, words in inside.items() if f'the {name}' in words.split(' and ')}
    if held.strip() == f'the {name}':
        found.add(ROBOT)
    place = _place(f'{name}: {where.strip()}')
    return found == ({place} & {*inside, ROBOT})


def _place(text: str) -> str:
    """Where a thing is by its sentence: a place, the robot, or the table."""
    return next(iter(read_table([text]).where.values()), '')
