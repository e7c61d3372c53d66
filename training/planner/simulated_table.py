"""A table that executes tasks, so that missions can be practised without a simulator.

The facts of a state follow from the executed tasks. They are the sentences of the robot's memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.table_memory import FLOOR, ROBOT, TABLE, KnownTable, Record
from embodied_kv.demo.sim.tasks import Task

OBJECT_NAMES = tuple(f'{colour} {shape}' for colour in COLOURS for shape in MOVABLE)
PLACE_NAMES = tuple(f'{colour} {shape}' for shape in RECEPTACLES for colour in COLOURS)
ORDER = (*OBJECT_NAMES, *PLACE_NAMES)
TASKS = 48  # numbers of task records
ROOM = 2  # things in a receptacle, one on each of its spots
LAST = 3  # moves that can be undone


@dataclass(frozen=True)
class Fact:
    """A segment of the memory of the robot. kind: one of `memory.segment.KINDS`."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class SimulatedTable(KnownTable):
    """A state of the table. `do` and `fail` return the state after a task, with its record."""

    @classmethod
    def of(cls, known: KnownTable) -> SimulatedTable:
        """Return a table in the known state."""
        return cls(known.where, known.places, known.beside, known.records, known.lay)

    def facts(self) -> list[Fact]:
        """Return the sentences: things, receptacles, robot, records by age, notes of moves."""
        return [
            *(Fact(name, 'object', f'{name}: {self.lies(name)}') for name in self.where),
            *(Fact(name, 'place', f'{name}: holds {self.holds(name)}') for name in self.places),
            Fact(ROBOT, 'agent', f'{ROBOT}: holds {self.holds(ROBOT)}'),
            *(Fact(f'task {n}', 'task', f'task {n}: {r.text}') for n, r in self.records.items()),
            *(
                Fact(f'last {name}', 'note', f'last move of the {name}: task {number}')
                for name, number in self.last.items()
            ),
        ]

    def hindrance(self, task: Task) -> str:
        """Return why the task is meaningless in this state, or ''."""
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
            case 'next' if (y not in self.places and self.where.get(y) != TABLE) or x == y:
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

    def do(self, task: Task, words: str = '') -> SimulatedTable:
        """Return the state after a task, with its record.

        The robot first puts down any other thing that it holds.

        Raises:
            ValueError: The task is meaningless in this state.
        """
        if reason := self.hindrance(task):
            raise ValueError(f'{task.phrase(0)}: {reason}')
        x, before = task.target, self._hands_free(task)
        origin = self.origin(x)
        place = {'put': task.place, 'pick': ROBOT}.get(task.family, TABLE)
        beside = {'next': f'next to the {task.place}', 'push': f'on the {task.side}'}
        after = before.lie(x, place, beside.get(task.family, ''))
        records = self._recorded(Record(task, origin, True, words))
        return replace(after, records=records, lay=origin if place == ROBOT else TABLE)

    def fail(self, task: Task, place: str | None = None) -> SimulatedTable:
        """Return the state after a failed task.

        place: new position of its thing, TABLE or ROBOT; None if the thing has not moved.
        """
        x, lay = task.target, self.lay
        after = self._hands_free(task)
        if place not in (None, self.where[x]):
            lay = lay if self.where[x] == ROBOT else self.where[x]
            after = after.lie(x, place)
        return replace(after, records=self._recorded(Record(task, '', False)), lay=lay)

    def lie(self, name: str, place: str, beside: str = '') -> SimulatedTable:
        """Return the state with a thing at another place, without a record."""
        gone = {name, *(n for n, words in self.beside.items() if words == f'next to the {name}')}
        others = {n: words for n, words in self.beside.items() if n not in gone}
        if beside:
            others[name] = beside
        return replace(self, where={**self.where, name: place}, beside=others)

    def _hands_free(self, task: Task) -> SimulatedTable:
        held = self.held
        wanted = held == task.target and task.family != 'push'
        return self if held is None or wanted else self.lie(held, TABLE)

    def _recorded(self, record: Record) -> dict[int, Record]:
        """Return the records with a new one; its number is the next, or that of the oldest."""
        records = dict(self.records)
        if len(records) < TASKS:
            number = max(records, default=0) % TASKS + 1
            number = next(n for n in range(number, TASKS + 1) if n not in records)
        else:
            number = next(iter(records))
            del records[number]
        return {**records, number: record}


def ordered(names: Iterable[str]) -> list[str]:
    """Return the names in the order in which missions treat them: by colour, then by shape."""
    return sorted(names, key=ORDER.index)
