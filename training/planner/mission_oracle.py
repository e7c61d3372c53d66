"""The next step of a mission by rules, from the known table and the previous steps.

The rules, in this order:
- A part is impossible if it contradicts itself, names an absent thing, or needs a full place.
- The next thing is the first that is not at its goal, by colour and then by shape, in the order of
  `scene.COLOURS` and `scene.MOVABLE`. Without one the part is done.
- A failed step is repeated once, then tried another way (`_other_way`), and once more if that only
  picks up the thing; then the mission is given up. A push has two tries and no other way.
- An undo reverts the moves before its part, newest first, one step each; a move needs no step if
  its thing is at its former place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.demo.sim.tasks import Task
from training.planner.household import ROBOT
from training.planner.missions import ImpossibleMissionError, Mission, Part, check_thing, place_of
from training.planner.simulated_table import LAST, ROOM, SimulatedTable, ordered

TRIES = 3  # of a step, the other way included
PUSHES = 2
KINDS = ('task', 'say', 'done', 'over', 'impossible', 'give up')


@dataclass(frozen=True)
class Step:
    """The next step. kind: one of KINDS. words: the report, or the reason.

    `done` ends a part, `over` the mission. task: of the policy, for `task` and `give up`.
    """

    kind: str
    task: Task | None = None
    words: str = ''

    @property
    def text(self) -> str:
        """The answer of the planner."""
        if self.kind == 'task':
            return self.task.phrase(0)
        words = self.task.phrase(0) if self.task else self.words
        return f'{self.kind}: {words}' if words else self.kind


@dataclass(frozen=True)
class Tried:
    """An executed step of the present part. task: None for a report."""

    task: Task | None
    done: bool


@dataclass(frozen=True)
class Progress:
    """The progress of a mission. part: from 0. moves: `SimulatedTable.moves` at the part's start.

    tried: steps of this part, in order.
    """

    part: int = 0
    moves: tuple[int, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def count(self) -> int:
        """Number of successful steps; picking up does not count."""
        return sum(one.done and not _picks(one) for one in self.tried)

    @property
    def tail(self) -> tuple[Tried, ...]:
        """The steps since the last successful one."""
        done = [i for i, one in enumerate(self.tried) if one.done and not _picks(one)]
        return self.tried[done[-1] + 1 :] if done else self.tried

    def after(self, step: Step, done: bool, table: SimulatedTable) -> Progress:
        """Return the progress after a step. table: the state after it."""
        if step.kind == 'done':
            return Progress(self.part + 1, table.moves[:LAST])
        return Progress(self.part, self.moves, (*self.tried, Tried(step.task, done)))


def begin(table: SimulatedTable) -> Progress:
    """Return the progress at the start of a mission."""
    return Progress(0, table.moves[:LAST])


def next_step(mission: Mission, table: SimulatedTable, progress: Progress) -> Step:
    """Return the correct step. table: as the memory describes it."""
    if progress.part >= len(mission.parts):
        return Step('over')
    part = mission.parts[progress.part]
    try:
        if both := [name for name in ordered(part.stay) if name in part.which.names]:
            raise ImpossibleMissionError(f'the {both[0]} is to stay')
        return _RULES[part.kind](part, table, progress)
    except ImpossibleMissionError as reason:
        return Step('impossible', words=str(reason))


def _put(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    return _bring(_meant(part, table, progress), place_of(part.place, table), table, progress)


def _take(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    return _bring(_meant(part, table, progress), TABLE, table, progress)


def _meant(part: Part, table: SimulatedTable, progress: Progress) -> list[str]:
    """Return the things of a part, also those that a failed step moved out of its place."""
    return ordered({*part.which.of(table), *(one.task.target for one in progress.tail)})


def _next(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    (thing,) = part.which.of(table)
    place = part.place if part.place in table.where else None
    if place:
        check_thing(place, table)
        if table.where[place] != TABLE:
            raise ImpossibleMissionError(f'the {place} is {table.lies(place)}')
    else:
        place = place_of(part.place, table)
    if table.next_to(thing, place):
        return Step('done')
    return _try(Task('next', thing, place), table, progress)


def _push(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    (thing,) = part.which.of(table)
    if table.beside.get(thing) == f'on the {part.side}':
        return Step('done')
    if table.where[thing] in table.places:
        return _try(Task('take', thing, table.where[thing]), table, progress)
    return _try(Task('push', thing, side=part.side), table, progress)


def _back(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    (thing,) = part.which.of(table)
    if progress.count:
        return Step('done')
    if thing not in table.last:
        raise ImpossibleMissionError(f'I do not know where the {thing} was')
    origin = place_of(table.records[table.last[thing]].origin, table)
    return _bring([thing], origin, table, progress)


def _undo(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    if not progress.moves:
        raise ImpossibleMissionError('I moved nothing')
    for number in progress.moves[progress.count : part.steps]:
        record = table.records[number]
        step = _bring([record.task.target], place_of(record.origin, table), table, progress)
        if step.kind != 'done':
            return step
    return Step('done')


def _say(part: Part, table: SimulatedTable, progress: Progress) -> Step:
    if progress.tried:
        return Step('done')
    match part.about:
        case 'where':
            (thing,) = part.which.names
            if thing not in table.where:
                raise ImpossibleMissionError(f'I know no {thing}')
            words = f'the {thing} is {table.lies(thing)}'
        case 'inside':
            place = place_of(part.place, table)
            words = f'the {place} holds {table.holds(place)}'
        case 'held':
            words = f'I hold {table.holds(ROBOT)}'
        case _:
            moves = progress.moves
            thing = f'the {table.records[moves[0]].task.target}' if moves else 'nothing'
            words = f'I moved {thing} last'
    return Step('say', words=words)


_RULES = {
    'put': _put,
    'take': _take,
    'next': _next,
    'push': _push,
    'back': _back,
    'undo': _undo,
    'say': _say,
}


def _bring(things: Sequence[str], place: str, table: SimulatedTable, progress: Progress) -> Step:
    """Return the step that moves the first of these things that is not at the place."""
    thing = next((name for name in things if table.where.get(name) != place), None)
    if thing is None:
        return Step('done')
    check_thing(thing, table)
    now = table.where[thing]
    if place == TABLE:
        if now == ROBOT:
            return _try(Task('next', thing, _landmark(thing, table)), table, progress)
        return _try(Task('take', thing, now), table, progress)
    if len(table.inside(place)) >= ROOM:
        raise ImpossibleMissionError(f'the {place} is full')
    return _try(Task('put', thing, place), table, progress)


def _try(task: Task, table: SimulatedTable, progress: Progress) -> Step:
    """Return the step, or the alternative after its failures."""
    tail = [one for one in progress.tail if one.task.target == task.target]
    failures = sum(not _picks(one) for one in tail)
    if failures >= (PUSHES if task.family == 'push' else TRIES):
        return Step('give up', task)
    if failures == TRIES - 1 and not any(map(_picks, tail)):
        return Step('task', _other_way(task, table))
    return Step('task', task)


def _other_way(task: Task, table: SimulatedTable) -> Task:
    """Return the alternative: next to the receptacle for a take, else pick up first."""
    if task.family == 'take':
        return Task('next', task.target, task.place)
    if table.where[task.target] == ROBOT:
        return task
    return Task('pick', task.target)


def _landmark(thing: str, table: SimulatedTable) -> str:
    """Return the first receptacle, or thing on the table, to put a held thing next to."""
    others = (name for name in table.where if table.where[name] == TABLE and name != thing)
    found = [*ordered(table.places), *ordered(others)]
    if not found:
        raise ImpossibleMissionError(f'there is nothing to put the {thing} next to')
    return found[0]


def _picks(one: Tried) -> bool:
    return one.task is not None and one.task.family == 'pick'
