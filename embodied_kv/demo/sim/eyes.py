"""What to ask of a picture to know the table, and what the answers are worth remembering as.

A look is a generator: it yields questions, is sent their answers, and returns what is known then.
It believes what the policy says. Knows words. Does not know who answers, nor memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from embodied_kv.demo.sim.language import COUNT, HELD, in_or_on
from embodied_kv.demo.sim.mission_memory import parse_task, read_table
from embodied_kv.demo.sim.mission_table import FLOOR, TABLE, KnownTable
from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.planning.domain import Draft, SceneFacts, SceneQuery

ROBOT = 'robot'
NAME = r'\w+ \w+'
WHERE = re.compile(rf'Where is the ({NAME})\?')
INSIDE = re.compile(rf'What is (?:in|on) the ({NAME})\?')
NAMED = re.compile(rf'the ({NAME})')
PLACE = re.compile(r'(?:in|on|next to) the .+')
TELLING = MOVABLE[:2]  # shapes that the policy learnt to miss where no thing has the colour


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


def look_around(known: KnownTable) -> SceneQuery:
    """At the whole table: which colours there are, as which shapes, and where all of it is.

    A thing that is known keeps its name as long as its colour is seen: a shape is harder to tell.
    One whose colour is not seen is gone, unless another answer names it, or as many things are
    counted as are known.
    """
    pairs = [(colour, shape) for colour in COLOURS for shape in TELLING]
    seen = yield [f'Do you see the {colour} {shape}?' for colour, shape in pairs]
    missed = {pair for pair, answer in zip(pairs, seen, strict=True) if answer.strip() != 'yes'}
    colours = [c for c in COLOURS if not {(c, shape) for shape in TELLING} <= missed]
    names = {name.split()[0]: name for name in (*known.where, *known.places)}
    doubted = tuple(name for colour, name in names.items() if colour not in colours)
    new = [colour for colour in colours if colour not in names]
    shapes = yield [f'What shape is the {colour} thing?' for colour in new]
    for colour, shape in zip(new, shapes, strict=True):
        if shape.strip() in (*MOVABLE, *RECEPTACLES):
            names[colour] = f'{colour} {shape.strip()}'
    return (yield from _ask([*names.values()], known, doubted))


def look_at(instruction: str, known: KnownTable) -> SceneQuery:
    """At what an instruction was about: its thing, and all places; and at what was held before.

    A hand that moves one thing lays down another first, and nothing else would tell where.
    """
    task = parse_task(instruction)
    held = [name for name, place in known.where.items() if place == ROBOT]
    things = [task.target, *held] if task is not None else held
    return (yield from _ask([*dict.fromkeys(things), *known.places], known))


def _ask(names: Sequence[str], known: KnownTable, doubted: tuple[str, ...] = ()) -> SceneQuery:
    """Where these things are, what lies in these places, and what is held.

    An answer to the one has to agree with those to the other, else what was known stays, and what
    is new beside it is not believed: one mistake in twenty would else be remembered of every table
    of five things. Where nothing is known there is nothing to lose.
    """
    places = [name for name in names if name.endswith(RECEPTACLES)]
    things = [name for name in names if name not in places]
    answers = yield [
        *(f'Where is the {name}?' for name in things),
        *(f'What is {in_or_on(name)} the {name}?' for name in places),
        HELD,
        *([COUNT] if doubted else []),
    ]
    called = _Called((*names, *known.where, *known.places))
    where, inside, (held, *count) = _split(answers, len(things), len(places))
    fewer = not all(n.strip().isdecimal() and int(n) >= len(known.where) for n in count)
    lost = tuple(name for name in doubted if not called.in_any(name, answers))
    gone = tuple(name for name in lost if fewer or name in known.places)
    holds = dict(zip(places, inside, strict=True)) | {ROBOT: held}
    lie = {name: place for name, place in known.where.items() if name not in gone}
    drafts = []
    for name, answer in zip(things, where, strict=True):
        place, told = called.place(name, answer), called.holders(name, holds)
        beside = place == TABLE and known.beside.get(name)  # which is as true of it, and more
        unseen = name in doubted and not told and place != FLOOR
        agree = told == {place} & {*holds} or not known.where
        if place and agree and not beside and not unseen and name not in gone:
            drafts.append((name, 'object', f'{name}: {_at(place)}'))
            lie[name] = place
    for name in places:
        if name not in gone:
            inside = ' and '.join(f'the {thing}' for thing in sorted(lie) if lie[thing] == name)
            drafts.append((name, 'place', f'{name}: holds {inside or "nothing"}'))
    held = next((f'the {name}' for name, place in lie.items() if place == ROBOT), 'nothing')
    return SceneFacts((*drafts, (ROBOT, 'agent', f'{ROBOT}: holds {held}')), gone)


class _Called:
    """What answers mean by a name: the one of its colour, where only one has that colour."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        colours = Counter(name.split()[0] for name in self._names)
        self._one = {
            name.split()[0]: name for name in self._names if colours[name.split()[0]] == 1
        }

    def in_any(self, name: str, answers: Sequence[str]) -> bool:
        """Whether one of the answers names it."""
        return any(self._of(said) == name for answer in answers for said in NAMED.findall(answer))

    def holders(self, name: str, holds: Mapping[str, str]) -> set[str]:
        """Who is said to hold it. holds: answers by place."""
        return {place for place, answer in holds.items() if self.in_any(name, [answer])}

    def place(self, name: str, answer: str) -> str:
        """Where a thing is: a place that is known, table, floor or robot; '' for anything else."""
        place = _place(f'{name}: {answer.strip()}')
        place = self._of(place) if ' ' in place else place
        known = place in self._names and place.endswith(RECEPTACLES)
        return place if known or place in (TABLE, FLOOR, ROBOT) else ''

    def _of(self, said: str) -> str:
        return said if said in self._names else self._one.get(said.split()[0], said)


def _at(place: str) -> str:
    """As memory says it."""
    if place == ROBOT:
        return f'held by the {ROBOT}'
    return f'{"on" if place in (TABLE, FLOOR) else in_or_on(place)} the {place}'


def _split(answers: Sequence[str], *counts: int) -> list[Sequence[str]]:
    """The first so many answers, the next so many, …, and the rest."""
    parts, begin = [], 0
    for count in counts:
        parts.append(answers[begin : begin + count])
        begin += count
    return [*parts, answers[begin:]]


def _place(text: str) -> str:
    """Where a thing is by its sentence: a place, the robot, or the table."""
    return next(iter(read_table([text]).where.values()), '')
