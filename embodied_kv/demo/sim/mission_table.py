"""The tabletop as memory tells it while missions are done on it: facts, and records of tasks.

A `KnownTable` is one state: what lies where, and what the robot did, by number. Doing a task
gives the next state, so every fact is true of what was done. Knows names, tasks and sentences.
Does not know metres, missions or chance.

The facts are those that the memory node writes (`notes`), and three that it can write as easily:
what a receptacle holds is language's answer to `What is in the blue bin?`, a record also says
where the thing was before, and a note names the last record that moved a thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from embodied_kv.demo.sim.household import (
    CARRIER_NAMES,
    LIDDED_NAMES,
    OBJECT_NAMES,
    ROBOT,
    TASKS,
    Fact,
    at,
)
from embodied_kv.demo.sim.scene import RECEPTACLES
from embodied_kv.demo.sim.tasks import Task

TABLE, FLOOR = 'table', 'floor'
PLACE_NAMES = tuple(
    name for name in (*CARRIER_NAMES, *LIDDED_NAMES) if name.split()[1] in RECEPTACLES
)
ROOM = 2  # things in a receptacle, one on each of its spots
MOVES = ('put', 'take', 'next', 'push')  # families that change where a thing lies
LAST = 3  # moves that may be undone


@dataclass(frozen=True)
class Record:
    """A task that the robot was told. origin: where its thing lay before; done: whether it was.

    words: the instruction; '' is the plainest.
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
    """One state. where: of each movable thing, TABLE, FLOOR, ROBOT or a receptacle.

    places: the receptacles. beside: what else is said of things on the table, `next to the red
    bin` or `on the left`. records: by number, the oldest first. lay: where a held thing lay.
    """

    where: Mapping[str, str]
    places: tuple[str, ...]
    beside: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[int, Record] = field(default_factory=dict)
    lay: str = TABLE

    @property
    def held(self) -> str | None:
        return next((name for name, place in self.where.items() if place == ROBOT), None)

    @property
    def moves(self) -> tuple[int, ...]:
        """Numbers of the records that moved a thing, the newest first."""
        return tuple(n for n, record in reversed(self.records.items()) if record.moved)

    @property
    def last(self) -> dict[str, int]:
        """The number of the last record that moved a thing, by thing."""
        return {r.task.target: n for n, r in self.records.items() if r.moved}

    def origin(self, name: str, unknown: str = TABLE) -> str:
        """From where a thing would be moved: where it is, or lay before it was picked up."""
        place = self.where.get(name, unknown)
        return self.lay if place == ROBOT else place

    def inside(self, place: str) -> list[str]:
        """What lies in a place, in the order of the alphabet, as language names it."""
        return sorted(name for name, at in self.where.items() if at == place)

    def lies(self, name: str) -> str:
        """Where a thing is, in words."""
        if self.where[name] == FLOOR:
            return f'on the {FLOOR}'
        return self.beside.get(name) or at(self.where[name])

    def holds(self, place: str) -> str:
        """What a receptacle, or the robot, holds, in words."""
        return ' and '.join(f'the {name}' for name in self.inside(place)) or 'nothing'

    def facts(self) -> list[Fact]:
        """Memory: things, receptacles, the robot, records by age, then notes of the last ones."""
        return [*self._things(), *self._records()]

    def _things(self) -> Iterator[Fact]:
        for name in self.where:
            yield Fact(name, 'object', f'{name}: {self.lies(name)}')
        for name in self.places:
            yield Fact(name, 'place', f'{name}: holds {self.holds(name)}')
        yield Fact(ROBOT, 'agent', f'{ROBOT}: holds {self.holds(ROBOT)}')

    def _records(self) -> Iterator[Fact]:
        for number, record in self.records.items():
            yield Fact(f'task {number}', 'task', f'task {number}: {record.text}')
        for name, number in self.last.items():
            yield Fact(f'last {name}', 'note', f'last move of the {name}: task {number}')

    def hindrance(self, task: Task) -> str:
        """Why the task makes no sense as things are; '' if it does."""
        x, y, lies = task.target, task.place, self.where.get(task.target)
        if lies in (None, FLOOR):
            return f'the {x} is out of reach'
        match task.family:
            case 'put' if lies == y:
                return f'the {x} is there'
            case 'put' if len(self.inside(y)) >= ROOM:
                return f'the {y} is full'
            case 'take' if lies != y or y not in self.places:
                return f'the {x} is not there'
            case 'next' if y not in self.places and self.where.get(y) != TABLE or x == y:
                return f'the {y} is not on the table'
            case 'next' if self.next_to(x, y):
                return f'the {x} is there'
            case 'push' if (
                lies not in (TABLE, ROBOT) or self.beside.get(x) == f'on the {task.side}'
            ):
                return f'the {x} cannot be pushed'
            case 'pick' if lies == ROBOT:
                return f'the {x} is held'
        return ''

    def next_to(self, x: str, y: str) -> bool:
        """Whether one of two things is said to be next to the other."""
        return self.beside.get(x) == f'next to the {y}' or self.beside.get(y) == f'next to the {x}'

    def do(self, task: Task, words: str = '') -> KnownTable:
        """The state after a task, with its record. Raises ValueError where it makes no sense.

        Whatever else the robot holds is put down first.
        """
        if reason := self.hindrance(task):
            raise ValueError(f'{task.phrase(0)}: {reason}')
        x, before = task.target, self._hands_free(task)
        origin = self.origin(x)
        place = {'put': task.place, 'pick': ROBOT}.get(task.family, TABLE)
        said = {'next': f'next to the {task.place}', 'push': f'on the {task.side}'}
        after = before.lie(x, place, said.get(task.family, ''))
        records = self._recorded(Record(task, origin, True, words))
        return replace(after, records=records, lay=origin if place == ROBOT else TABLE)

    def fail(self, task: Task, place: str | None = None) -> KnownTable:
        """The state after a task that was tried in vain; its thing may be somewhere else now.

        place: TABLE, or ROBOT where it is still in the gripper.
        """
        x, lay = task.target, self.lay
        after = self._hands_free(task)
        if place not in (None, self.where[x]):
            lay = lay if self.where[x] == ROBOT else self.where[x]
            after = after.lie(x, place)
        return replace(after, records=self._recorded(Record(task, '', False)), lay=lay)

    def lie(self, name: str, place: str, said: str = '') -> KnownTable:
        """A thing is somewhere else now, and nobody wrote a record."""
        gone = {name, *(n for n, words in self.beside.items() if words == f'next to the {name}')}
        beside = {n: words for n, words in self.beside.items() if n not in gone}
        if said:
            beside[name] = said
        return replace(self, where={**self.where, name: place}, beside=beside)

    def _hands_free(self, task: Task) -> KnownTable:
        held = self.held
        wanted = held == task.target and task.family != 'push'
        return self if held is None or wanted else self.lie(held, TABLE)

    def _recorded(self, record: Record) -> dict[int, Record]:
        """Numbers rise; once all are taken, the oldest is written anew, as `notes` does."""
        records = dict(self.records)
        if len(records) < TASKS:
            number = max(records, default=0) % TASKS + 1
            number = next(n for n in range(number, TASKS + 1) if n not in records)
        else:
            number = next(iter(records))
            del records[number]
        return {**records, number: record}


def ordered(names: Iterable[str]) -> list[str]:
    """Things in the order in which missions treat them: by colour, then shape, as `scene` does."""
    return sorted(names, key=(*OBJECT_NAMES, *PLACE_NAMES).index)
