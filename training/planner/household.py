"""A household in the memory of a robot: positions of things, in short sentences.

Things are in or on plates and bowls, these in bins and boxes, and all on tables; bins and boxes
have lids. A `Household` is one state. Its memory is a list of facts, and an update changes as few
facts as possible: when a bin moves, its contents remain "in the bin".
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
SEGMENTS = (8, 80)  # facts of a random household


@dataclass(frozen=True, eq=False)
class Household:
    """One state. All names are `<colour> <shape>` or `<side> table`; the arm is `robot`.

    where: place of each object, carrier and lidded thing. open: things with open lids. tasks:
    records (thing, place) by number. last: number of the last record, by receptacle. Updates
    return the next state, and raise ValueError for impossible actions.
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
        """Return the places around a thing, outwards; the last is a table or the robot."""
        chain = []
        while (name := self.where.get(name)) is not None:
            chain.append(name)
        return chain

    def lid(self, name: str) -> str | None:
        """Return the closed thing around a thing, or the thing itself if closed, else None."""
        around = (place for place in (name, *self.around(name)) if lidded(place))
        return next((place for place in around if place not in self.open), None)

    def facts(self) -> list[Fact]:
        """Return the memory of the robot: things, arm, records, notes."""
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
        """Pick up an object; changes the facts of object and robot."""
        self._know(name, self.objects)
        if self.held:
            raise ValueError(f'the robot holds the {self.held}: it cannot pick the {name}')
        self._reach(name)
        return replace(self, where={**self.where, name: ROBOT})

    def put(self, place: str) -> Household:
        """Put down the held object; changes object and robot, and for a receptacle its records.

        A repeated (thing, place) keeps its record. Without a free number the first record that is
        not the last of a receptacle is replaced.
        """
        self._know(place, (*TABLES, *self.receptacles))
        if (name := self.held) is None:
            raise ValueError(f'the robot holds nothing to put {into(place)}')
        self._reach(place)
        after = replace(self, where={**self.where, name: place})
        return after if place in TABLES else after._remember(name, place)

    def open_lid(self, name: str) -> Household:
        """Open a bin or box; changes its fact."""
        self._know(name, [*filter(lidded, self.where)])
        if name in self.open:
            raise ValueError(f'the {name} is open')
        return replace(self, open=self.open | {name})

    def close_lid(self, name: str) -> Household:
        """Close a bin or box; changes its fact."""
        self._know(name, self.open)
        return replace(self, open=self.open - {name})

    def move(self, name: str, place: str) -> Household:
        """Move a receptacle with its contents; changes its fact alone.

        A bin or box moves to a table; a plate or bowl also into an open bin or box.
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
    """Return whether the thing is a bin or a box."""
    return name.endswith(LIDDED)


def at(place: str) -> str:
    """Return the words for a thing that is at this place."""
    if place == ROBOT:
        return f'held by the {ROBOT}'
    return f'{"on" if place.endswith(("table", "plate")) else "in"} the {place}'


def into(place: str) -> str:
    """Return the words for a thing that is put to this place."""
    return f'{"onto" if place.endswith(("table", "plate")) else "into"} the {place}'


def upserts(before: Household, after: Household) -> list[Fact]:
    """Return the facts that differ; no update removes one."""
    known = set(before.facts())
    return [fact for fact in after.facts() if fact not in known]


def draw_household(rng: np.random.Generator, segments: int) -> Household:
    """Return a random state with `segments` facts. Raises ValueError outside SEGMENTS."""
    least, most = SEGMENTS
    if not least <= segments <= most:
        raise ValueError(f'segments must be from {least} to {most} (got {segments})')
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
    """Return records and last records, `facts` in total, several for some places."""
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
    """Return about `count` different names, at least one and at most all."""
    count = int(np.clip(round(count), 1, len(names)))
    return [names[i] for i in rng.permutation(len(names))[:count]]


def any_of(rng: np.random.Generator, options: Sequence) -> object:
    """Return a uniformly random option."""
    return options[int(rng.integers(len(options)))]
