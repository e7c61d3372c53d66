"""Random tables with histories, and random missions that are meaningful on them.

This module knows probabilities. `simulated_table` has the effects of tasks, `mission_oracle` the
steps of missions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.demo.sim.tasks import SIDES, Task
from training.planner.household import OBJECT_NAMES, TASKS, any_of, some_of
from training.planner.mission_oracle import begin, next_step
from training.planner.missions import ABOUT, Mission, Part, Which
from training.planner.simulated_table import PLACE_NAMES, ROOM, SimulatedTable

RECORDS = (5, 40)  # fewest and most of a history
FAMILIES = {'put': 0.45, 'take': 0.25, 'next': 0.15, 'push': 0.1, 'pick': 0.05}
PARTS = {
    'put': 0.42,
    'take': 0.17,
    'next': 0.08,
    'push': 0.05,
    'back': 0.13,
    'undo': 0.15,
}
WHICH = {'names': 0.32, 'colour': 0.2, 'shape': 0.16, 'place': 0.2, 'all': 0.12}
ENDS = {'does': 0.84, 'nothing': 0.05, 'impossible': 0.11}  # shares of the outcomes of a part
TRIES = 30  # draws for a part with the wanted outcome


def choose(rng: np.random.Generator, shares: dict[str, float]) -> str:
    """Return one of the keys at random. shares: their weights."""
    return str(rng.choice(list(shares), p=np.array([*shares.values()]) / sum(shares.values())))


def draw_table(rng: np.random.Generator, records: int) -> SimulatedTable:
    """Draw a table with a history of `records` records, as `scene` draws tables."""
    colours = [str(c) for c in rng.permutation(list(COLOURS))]
    places = [
        f'{colours.pop()} {any_of(rng, RECEPTACLES)}'
        for _ in range(rng.choice(3, p=(0.05, 0.25, 0.7)))
    ]
    most = 4 if len(places) == 2 else 5
    count = int(max(rng.integers(2, most, 2, endpoint=True)))
    shapes = MOVABLE[:2] if rng.random() < 0.4 else MOVABLE
    if rng.random() < 0.4:
        names = [f'{colour} {any_of(rng, shapes)}' for colour in colours[:count]]
    else:
        few = colours[: int(rng.integers(2, 4))]  # so that some colours come twice
        names = some_of(rng, [' '.join(kind) for kind in product(few, shapes)], count)
    table = SimulatedTable(dict.fromkeys(names, TABLE), tuple(places))
    for name in names:
        if places and rng.random() < 0.4:
            place = any_of(rng, places)
            if len(table.inside(place)) < ROOM:
                table = table.lie(name, place)
    for _ in range(records):
        table = _live(rng, table)
    if rng.random() < 0.06:
        table = table.lie(any_of(rng, names), FLOOR)
    return _shuffled(rng, _renumbered(table, int(rng.integers(TASKS))))


def _live(rng: np.random.Generator, table: SimulatedTable) -> SimulatedTable:
    """Return the table after a random task of the robot; rarely a person moves a thing first."""
    if rng.random() < 0.03:
        table = table.lie(any_of(rng, list(table.where)), TABLE)
    task = _draw_task(rng, table)
    if rng.random() < 0.12:
        return table.fail(task, draw_accident(rng, task, table))
    words = task.phrase(int(rng.integers(10))) if rng.random() < 0.2 else ''
    return table.do(task, words)


def draw_accident(rng: np.random.Generator, task: Task, table: SimulatedTable) -> str | None:
    """Draw where a thing is after a failed task: usually where it was (None)."""
    luck = rng.random()
    if task.family == 'push' or luck < 0.7:
        return None
    return TABLE if luck < 0.92 else 'robot'


def _draw_task(rng: np.random.Generator, table: SimulatedTable) -> Task:
    while True:
        family, target = choose(rng, FAMILIES), any_of(rng, list(table.where))
        others = [*table.places, *table.where]
        place = any_of(rng, table.places or [''])
        task = {
            'put': Task('put', target, place),
            'take': Task('take', target, table.where[target]),
            'next': Task('next', target, any_of(rng, others)),
            'push': Task('push', target, side=any_of(rng, list(SIDES))),
            'pick': Task('pick', target),
        }[family]
        if not table.hindrance(task) and (place or family != 'put'):
            return task


def _renumbered(table: SimulatedTable, first: int) -> SimulatedTable:
    """Renumber the records as if there had been other tasks before."""
    records = {(n - 1 + first) % TASKS + 1: record for n, record in table.records.items()}
    return replace(table, records=records)


def _shuffled(rng: np.random.Generator, table: SimulatedTable) -> SimulatedTable:
    names = list(table.where)
    return replace(
        table, where={names[i]: table.where[names[i]] for i in rng.permutation(len(names))}
    )


@dataclass(frozen=True)
class _Ends:
    """How a part ends if every step succeeds."""

    table: SimulatedTable
    steps: int
    kind: str

    @property
    def way(self) -> str:
        if self.kind != 'done':
            return 'impossible'
        return 'does' if self.steps else 'nothing'


def _follow(part: Part, table: SimulatedTable) -> _Ends:
    mission, progress, steps = Mission((part,)), begin(table), 0
    while (step := next_step(mission, table, progress)).kind in ('task', 'say'):
        if step.task:
            table = table.do(step.task)
        progress, steps = progress.after(step, True, table), steps + 1
    return _Ends(table, steps, step.kind)


def draw_mission(
    rng: np.random.Generator, table: SimulatedTable, parts: int = 0, kind: str = ''
) -> Mission:
    """Draw a mission in which each part is meaningful on the table that the parts before leave.

    parts: how many, 0 for one to three. kind: of the first part, '' for any.
    """
    parts = parts or int(rng.choice((1, 2, 3), p=(0.45, 0.35, 0.2)))
    drawn: list[Part] = []
    for i in range(parts):
        speaks = (parts > 1 and i == parts - 1 and rng.random() < 0.45) or rng.random() < 0.04
        now = kind if kind and not i else 'say' if speaks else choose(rng, PARTS)
        wanted = choose(rng, ENDS)
        for _ in range(TRIES):
            part = draw_part(rng, table, now)
            ends = _follow(part, table)
            if ends.way == wanted:
                break
            now = now if now == 'say' or (kind and not i) else choose(rng, PARTS)
        drawn.append(part)
        table = ends.table
        if ends.way == 'impossible':
            break
    return Mission(tuple(drawn))


def draw_part(rng: np.random.Generator, table: SimulatedTable, kind: str) -> Part:
    """Draw a part of a kind; at times about a thing that is absent."""
    things = list(table.where)
    if rng.random() < 0.05:
        things = [any_of(rng, OBJECT_NAMES)]
    one = Which((any_of(rng, things),))
    place = _draw_place(rng, table)
    match kind:
        case 'put':
            which = _draw_which(rng, table, things)
            return Part('put', which, place, stay=_draw_stay(rng, table, which))
        case 'take':
            which = _draw_which(rng, table, things)
            if not which.place and place != TABLE and rng.random() < 0.4:
                which = replace(which, place=place)
            return Part('take', which if which.place != TABLE else replace(which, place=place))
        case 'next':
            others = [name for name in (*table.where, *table.places) if name != one.names[0]]
            return Part('next', one, any_of(rng, others or [place]))
        case 'push':
            return Part('push', one, side=any_of(rng, list(SIDES)))
        case 'back':
            return Part('back', one)
        case 'undo':
            return Part('undo', steps=int(rng.choice((1, 2, 3), p=(0.5, 0.3, 0.2))))
        case _:
            about = any_of(rng, (*ABOUT, 'where', 'inside'))
            which = one if about == 'where' else Which()
            return Part('say', which, place if about == 'inside' else '', about=about)


def _draw_place(rng: np.random.Generator, table: SimulatedTable) -> str:
    """Draw the words for a place: usually its shape alone, if that is unique."""
    luck = rng.random()
    if not table.places or luck < 0.04:
        return any_of(rng, PLACE_NAMES) if luck < 0.02 else any_of(rng, RECEPTACLES)
    name = any_of(rng, table.places)
    shape = name.split()[1]
    alone = sum(other.endswith(shape) for other in table.places) == 1
    return shape if alone and rng.random() < 0.6 else name


def _draw_which(rng: np.random.Generator, table: SimulatedTable, things: list[str]) -> Which:
    match choose(rng, WHICH):
        case 'names':
            count = int(rng.choice((1, 2, 3), p=(0.55, 0.33, 0.12)))
            names = some_of(rng, things, count)
            if rng.random() < 0.02 and table.places:
                names = [any_of(rng, table.places)]
            return Which(tuple(names))
        case 'colour':
            colour = any_of(rng, [name.split()[0] for name in things])
            which = Which(colour=colour, other=rng.random() < 0.25)
        case 'shape':
            shape = any_of(rng, [name.split()[1] for name in things])
            which = Which(shape=shape, other=rng.random() < 0.25)
        case 'place':
            which = Which(place=TABLE if rng.random() < 0.2 else _draw_place(rng, table))
        case _:
            which = Which()
    if rng.random() < 0.25:
        here = [n for n in table.where if which == Which() or which.word in n.split()]
        which = replace(which, but=tuple(some_of(rng, here or things, 1 + (rng.random() < 0.2))))
    return which


def _draw_stay(rng: np.random.Generator, table: SimulatedTable, which: Which) -> tuple[str, ...]:
    """Draw things that are to stay: usually none; rarely another thing, or a named one."""
    luck = rng.random()
    if not which.names or luck > 0.16:
        return ()
    if luck < 0.06:
        return (any_of(rng, which.names),)
    others = [name for name in table.where if name not in which.names]
    return (any_of(rng, others),) if others else ()
