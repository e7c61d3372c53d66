"""A tabletop world as a robot remembers it: what lies where, in short sentences.

Things lie in or on plates and bowls, these in bins and boxes, and all of it on tables; bins and
boxes have lids. A `Household` is one state of that world. Its memory is a list of facts, and an
update changes the facts that it must, no others: when a bin is moved, what lies in it stays "in
the bin".

Knows names, states and sentences. Does not know positions in metres, how questions are asked
(`household_questions`) or which updates are likely (`household_traces`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.demo.sim.table_memory import ROBOT
from training.planner.simulated_table import OBJECT_NAMES, TASKS, Fact

CARRIERS = ('plate', 'bowl')
LIDDED = ('bin', 'box')
TABLES = tuple(f'{side} table' for side in ('left', 'right', 'front', 'back', 'middle', 'corner'))
CARRIER_NAMES = tuple(' '.join(name) for name in product(COLOURS, CARRIERS))
LIDDED_NAMES = tuple(' '.join(name) for name in product(COLOURS, LIDDED))
SEGMENTS = (8, 80)  # facts that a drawn household may have


@dataclass(frozen=True, eq=False)
class Household:
    """One state. All names are `<colour> <shape>` or `<side> table`; the arm is `robot`.

    where: what each object, carrier and lidded thing is in or on. open: lids that are. tasks:
    records of what was put where, by number. last: the number of the last such, by receptacle.
    Updates return the next state, and raise ValueError for what the robot cannot do.
    """

    where: Mapping[str, str]
    open: frozenset[str]
    tasks: Mapping[int, tuple[str, str]]
    last: Mapping[str, int]

    @property
    def objects(self) -> list[str]:
        return [name for name in self.where if name in OBJECT_NAMES]

    @property
    def receptacles(self) -> list[str]:
        """Carriers and lidded things."""
        return [name for name in self.where if name not in OBJECT_NAMES]

    @property
    def held(self) -> str | None:
        return next((name for name, place in self.where.items() if place == ROBOT), None)

    def around(self, name: str) -> list[str]:
        """What a thing is in or on, outwards: the last is a table or the robot; itself not."""
        chain = []
        while (name := self.where.get(name)) is not None:
            chain.append(name)
        return chain

    def lid(self, name: str) -> str | None:
        """What is closed around a thing, or is the thing itself and closed."""
        around = (place for place in (name, *self.around(name)) if lidded(place))
        return next((place for place in around if place not in self.open), None)

    def facts(self) -> list[Fact]:
        """The robot's memory, in the order in which a thing is named first."""
        return [*self._things(), self._arm(), *self._records()]

    def _things(self) -> Iterator[Fact]:
        for name, place in self.where.items():
            if lidded(name):
                lid = 'open' if name in self.open else 'closed'
                yield Fact(name, 'place', f'{name}: {lid}, {at(place)}')
            else:
                yield Fact(name, 'object', f'{name}: {at(place)}')

    def _arm(self) -> Fact:
        held = self.held
        return Fact(ROBOT, 'agent', f'{ROBOT}: holds {f"the {held}" if held else "nothing"}')

    def _records(self) -> Iterator[Fact]:
        for number, (thing, place) in self.tasks.items():
            text = f'task {number}: put the {thing} {into(place)}'
            yield Fact(f'task {number}', 'task', text)
        for place, number in self.last.items():
            yield Fact(f'last {place}', 'note', f'last {into(place)}: task {number}')

    def pick(self, name: str) -> Household:
        """Changes the object and the robot."""
        self._know(name, self.objects)
        if self.held:
            raise ValueError(f'the robot holds the {self.held}: it cannot pick the {name}')
        self._reach(name)
        return replace(self, where={**self.where, name: ROBOT})

    def put(self, place: str) -> Household:
        """Changes the object and the robot, and on a receptacle its note and perhaps a record.

        What was put there before has a record already, and keeps it. Where there are as many
        records as numbers, the first that is nobody's last is written anew.
        """
        self._know(place, (*TABLES, *self.receptacles))
        if (name := self.held) is None:
            raise ValueError(f'the robot holds nothing to put {into(place)}')
        self._reach(place)
        after = replace(self, where={**self.where, name: place})
        return after if place in TABLES else after._remember(name, place)

    def open_lid(self, name: str) -> Household:
        """Changes the bin or box."""
        self._know(name, [*filter(lidded, self.where)])
        if name in self.open:
            raise ValueError(f'the {name} is open')
        return replace(self, open=self.open | {name})

    def close_lid(self, name: str) -> Household:
        """Changes the bin or box."""
        self._know(name, self.open)
        return replace(self, open=self.open - {name})

    def move(self, name: str, place: str) -> Household:
        """Changes the receptacle alone: what lies in it comes along.

        A bin or box goes to a table; a plate or bowl also into one that is open.
        """
        self._know(name, self.receptacles)
        self._know(place, TABLES if lidded(name) else (*TABLES, *filter(lidded, self.where)))
        self._reach(name if not lidded(name) else self.where[name])
        self._reach(place)
        if self.where[name] == place:
            raise ValueError(f'the {name} is {at(place)}')
        return replace(self, where={**self.where, name: place})

    def _remember(self, name: str, place: str) -> Household:
        known = (n for n, task in self.tasks.items() if task == (name, place))
        if (number := next(known, None)) is None:
            free = (n for n in range(1, TASKS + 1) if n not in self.tasks)
            needed = self.last.values()
            old = (n for n in self.tasks if n not in needed)
            number = next(free, None) or next(old)
        tasks = {**self.tasks, number: (name, place)}
        return replace(self, tasks=tasks, last={**self.last, place: number})

    def _reach(self, name: str) -> None:
        if lid := self.lid(name):
            raise ValueError(f'the {lid} is closed')

    def _know(self, name: str, names) -> None:
        if name not in names:
            raise ValueError(f'no {name!r} for this; there are: {", ".join(sorted(names))}')


def lidded(name: str) -> bool:
    """Whether it is a bin or a box."""
    return name.endswith(LIDDED)


def at(place: str) -> str:
    """Where something is that is there."""
    if place == ROBOT:
        return f'held by the {ROBOT}'
    return f'{"on" if place.endswith(("table", "plate")) else "in"} the {place}'


def into(place: str) -> str:
    """Where something goes that is put there."""
    return f'{"onto" if place.endswith(("table", "plate")) else "into"} the {place}'


def upserts(before: Household, after: Household) -> list[Fact]:
    """The facts of `after` that are new or other than before; no update takes one away."""
    known = set(before.facts())
    return [fact for fact in after.facts() if fact not in known]


def draw_household(rng: np.random.Generator, segments: int) -> Household:
    """A state with so many facts. Raises ValueError for fewer or more than there can be."""
    least, most = SEGMENTS
    if not least <= segments <= most:
        raise ValueError(f'{segments} segments: a household has {least} to {most}')
    lids, carriers, objects = (
        some_of(rng, names, segments * rng.uniform(*share))
        for names, share in (
            (LIDDED_NAMES, (0.15, 0.3)),
            (CARRIER_NAMES, (0.1, 0.25)),
            (OBJECT_NAMES, (0.2, 0.35)),
        )
    )
    where = {name: any_of(rng, TABLES) for name in lids}
    where |= {name: any_of(rng, lids if rng.random() < 0.7 else TABLES) for name in carriers}
    for name in objects:
        luck = rng.random()
        where[name] = any_of(rng, carriers if luck < 0.45 else lids if luck < 0.85 else TABLES)
    if rng.random() < 0.5:
        where[any_of(rng, objects)] = ROBOT
    names = list(where)
    where = {names[i]: where[names[i]] for i in rng.permutation(len(names))}
    is_open = frozenset(name for name in lids if rng.random() < 0.6)
    tasks, last = _draw_records(rng, objects, [*lids, *carriers], segments - len(where) - 1)
    return Household(where, is_open, tasks, last)


def _draw_records(
    rng: np.random.Generator, objects: list[str], places: list[str], facts: int
) -> tuple[dict[int, tuple[str, str]], dict[str, int]]:
    """Records of tasks and what was last, as many facts together: some places, several tasks."""
    notes = int(np.clip(facts * rng.uniform(0.15, 0.4), facts > 1, len(places)))
    notes = max(notes, facts - TASKS)
    numbers = 1 + rng.permutation(TASKS)[: facts - notes]
    noted = [places[i] for i in rng.permutation(len(places))[:notes]]
    tasks = {}
    for i, number in enumerate(numbers.tolist()):
        place = noted[i] if i < notes else any_of(rng, noted or places)
        thing = any_of(rng, objects)
        while (thing, place) in tasks.values():
            thing, place = any_of(rng, objects), any_of(rng, places)
        tasks[number] = thing, place
    last = {p: any_of(rng, [n for n, task in tasks.items() if task[1] == p]) for p in noted}
    return tasks, last


def some_of(rng: np.random.Generator, names: Sequence[str], count: float) -> list[str]:
    """About so many different ones, at least one and at most all."""
    count = int(np.clip(round(count), 1, len(names)))
    return [names[i] for i in rng.permutation(len(names))[:count]]


def any_of(rng: np.random.Generator, options: Sequence) -> object:
    """One of them, each as likely as another."""
    return options[int(rng.integers(len(options)))]
