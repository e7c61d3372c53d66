"""The table as the sentences of the memory describe it: positions of things, and task records.

A `KnownTable` is one state of the table, which `read_table` parses from the sentences of the
memory. Sentences of another form are ignored. `training.planner.simulated_table` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embodied_kv.demo.sim.language import in_or_on, where_is
from embodied_kv.demo.sim.scene import MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.tasks import PHRASES, Task
from embodied_kv.text import shown

if TYPE_CHECKING:  # imports mujoco
    from embodied_kv.demo.sim.tabletop import Truth

TABLE, FLOOR, ROBOT = 'table', 'floor', 'robot'
MOVES = ('put', 'take', 'next', 'push')  # task families that change the position of a thing
NAME = r'\w+ \w+'
PREPOSITIONS = (
    dict(on='into', off='out of'),
    dict(on='on', off='off'),
    dict(on='onto', off='off'),
)
INSTRUCTIONS = [
    (
        family,
        re.compile(
            words.format(x=f'(?P<x>{NAME})', y=f'(?P<y>{NAME})', side='(?P<s>left|right)', **way)
        ),
    )
    for family, phrases in PHRASES.items()
    for words in phrases
    for way in PREPOSITIONS
]
THING = re.compile(rf'({NAME}): (in|on|next to|held by) the (.+)')
HOLDS = re.compile(rf'({NAME}): holds (.+)')
RECORD = re.compile(rf'task (\d+): (.+?)(?:, from the (table|{NAME})|(, not finished))')


@dataclass(frozen=True)
class Record:
    """A task that the robot received.

    origin: position of its thing before. done: whether the task succeeded. words: the instruction;
    '' for the first phrase of the task.
    """

    task: Task
    origin: str
    done: bool = True
    words: str = ''

    @property
    def moved(self) -> bool:
        return self.done and self.task.family in MOVES

    @property
    def text(self) -> str:
        words = self.words or self.task.phrase(0)
        return f'{words}, from the {self.origin}' if self.done else f'{words}, not finished'


@dataclass(frozen=True, eq=False)
class KnownTable:
    """One state of the table.

    where: TABLE, FLOOR, ROBOT or a receptacle for each movable thing. places: the receptacles.
    beside: further positions of things on the table, `next to the red bin` or `on the left`.
    records: task records by number, oldest first. lay: position of the held thing before.
    """

    where: Mapping[str, str]
    places: tuple[str, ...]
    beside: Mapping[str, str] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    lay: str = TABLE

    @property
    def held(self) -> str | None:
        return next((name for name, place in self.where.items() if place == ROBOT), None)

    @property
    def moves(self) -> tuple[int, ...]:
        """Return the numbers of the records that moved a thing, newest first."""
        return tuple(n for n, record in reversed(self.records.items()) if record.moved)

    @property
    def last(self) -> dict[str, int]:
        """Return the number of the last record that moved each thing."""
        return {r.task.target: n for n, r in self.records.items() if r.moved}

    def origin(self, name: str, unknown: str = TABLE) -> str:
        """Return the position of a thing, or its position before the robot picked it up."""
        place = self.where.get(name, unknown)
        return self.lay if place == ROBOT else place

    def inside(self, place: str) -> list[str]:
        """Return the names of the things in a place, in alphabetical order."""
        return sorted(name for name, at in self.where.items() if at == place)

    def lies(self, name: str) -> str:
        """Return the position of a thing in words."""
        return self.beside.get(name) or position(self.where[name])

    def holds(self, place: str) -> str:
        """Return the contents of a receptacle, or of the gripper, in words."""
        return ' and '.join(f'the {name}' for name in self.inside(place)) or 'nothing'

    def next_to(self, x: str, y: str) -> bool:
        """Return whether one of two things is recorded as next to the other."""
        return self.beside.get(x) == f'next to the {y}' or self.beside.get(y) == f'next to the {x}'


def position(place: str) -> str:
    """Return the words for a thing that is at this place."""
    return f'held by the {ROBOT}' if place == ROBOT else f'{in_or_on(place)} the {place}'


def parse_task(words: str) -> Task | None:
    """Return the task of an instruction in any phrasing, or None."""
    for family, template in INSTRUCTIONS:
        if match := template.fullmatch(words):
            named = match.groupdict()
            return Task(family, named['x'], named.get('y') or '', named.get('s') or '')
    return None


def confirms(instruction: str, known: KnownTable) -> bool:
    """Return whether the target lies where the instruction wanted it; True if unknown."""
    task = parse_task(instruction)
    place = known.where.get(task.target) if task else None
    if task is None or place is None:
        return True
    match task.family:
        case 'pick':
            return place == ROBOT
        case 'put':
            return place == task.place
        case 'take' | 'next' | 'push':
            return place == TABLE
    return True


def refusal(instruction: str, known: KnownTable) -> str:
    """Return why an instruction of the planner must not be executed, or ''.

    The instruction is unknown to this robot, or names a thing that has not been seen.
    """
    answer = f"the planner answered '{shown(instruction)}'"
    if (task := parse_task(instruction)) is None:
        return f'{answer}, which is no instruction'
    seen = {'', *known.where, *known.places}
    missing = [name for name in (task.target, task.place) if name not in seen]
    return f'{answer}, but no {missing[0]} has been seen' if missing else ''


def true_table(truth: Truth) -> KnownTable:
    """Return the true state of the simulated table, without records."""
    names = [thing.name for thing in truth.things if thing.shape in MOVABLE]
    places = tuple(thing.name for thing in truth.things if thing.shape in RECEPTACLES)
    lying = read_table(f'{name}: {where_is(name, truth)[-1]}' for name in names)
    return KnownTable(lying.where, places, lying.beside)


def read_table(texts: Iterable[str]) -> KnownTable:
    """Return the table that these sentences describe.

    A later sentence about a thing replaces an earlier one.
    """
    where: dict[str, str] = {}
    beside: dict[str, str] = {}
    places: dict[str, None] = {}
    records: dict[int, Record] = {}
    for text in texts:
        if match := THING.fullmatch(text):
            name, way, place = match.groups()
            beside.pop(name, None)
            is_place = place in (TABLE, FLOOR, ROBOT)
            if not is_place and (way == 'next to' or place in ('left', 'right')):
                beside[name] = f'{way} the {place}'
                place = TABLE
            where[name] = place
        elif match := HOLDS.fullmatch(text):
            places[match[1]] = None
        elif (match := RECORD.fullmatch(text)) and (task := parse_task(match[2])):
            plain = task.phrase(0) == match[2]
            record = Record(task, match[3] or '', not match[4], '' if plain else match[2])
            records.pop(int(match[1]), None)
            records[int(match[1])] = record
    held = [name for name, place in where.items() if place == ROBOT]
    return KnownTable(where, tuple(places), beside, records, next(_origins(held, records), TABLE))


def _origins(held: list[str], records: dict[int, Record]) -> Iterator[str]:
    """Yield the positions of the held thing before its moves, newest first."""
    for record in reversed(records.values()):
        if record.task.target in held and record.origin:
            yield record.origin
