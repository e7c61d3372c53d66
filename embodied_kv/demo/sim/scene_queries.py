"""Scene queries: questions about a picture that determine the state of the table.

A query is a generator: it yields questions, receives their answers, and returns the facts and the
names of things that are gone. It trusts answers of the policy that agree with each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from embodied_kv.demo.sim.language import COUNT, HELD, SHAPES, in_or_on
from embodied_kv.demo.sim.scene import COLOURS, RECEPTACLES
from embodied_kv.demo.sim.table_memory import (
    FLOOR,
    NAME,
    ROBOT,
    TABLE,
    KnownTable,
    parse_task,
    position,
    read_table,
)
from embodied_kv.planning.domain import SceneFacts, SceneQuery

NAMED = re.compile(rf'the ({NAME})')
NAMED_BY_CLIENT, STATED = 1.5, 1.1  # votes for a shape; of an answer that it is seen: 1
MENTIONED = re.compile(rf'\b({"|".join(COLOURS)}) ({"|".join(SHAPES)})\b')


def query_table(known: KnownTable, mission: str = '') -> SceneQuery:
    """Query the whole table: the colours, their shapes, and the position of each thing.

    A known thing keeps its name while its colour is seen, because a shape is harder to recognise.
    Of others, two questions and a name in the mission vote for a shape. A thing of an unseen
    colour is gone, unless another answer names it or as many things are counted as are known.
    """
    pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    seen = yield [f'Do you see the {colour} {shape}?' for colour, shape in pairs]
    votes = {pair: float(said.strip() == 'yes') for pair, said in zip(pairs, seen, strict=True)}
    colours = [colour for colour in COLOURS if any(votes[colour, shape] for shape in SHAPES)]
    names = {name.split()[0]: name for name in (*known.where, *known.places)}
    doubted = tuple(name for colour, name in names.items() if colour not in colours)
    new = [colour for colour in colours if colour not in names]
    shapes = yield [f'What shape is the {colour} thing?' for colour in new]
    for pair in {*MENTIONED.findall(mission)}:
        votes[pair] += NAMED_BY_CLIENT
    for colour, said in zip(new, shapes, strict=True):
        if (colour, said.strip()) in votes:
            votes[colour, said.strip()] += STATED
        names[colour] = f'{colour} {max(SHAPES, key=lambda shape: votes[colour, shape])}'
    return (yield from _query([*names.values()], known, doubted))


def query_target(instruction: str, known: KnownTable) -> SceneQuery:
    """Query the target of an instruction, all places, and the thing that was held before.

    A robot that moves one thing first puts down another, and no other query finds its position.
    """
    task = parse_task(instruction)
    held = [name for name, place in known.where.items() if place == ROBOT]
    things = [task.target, *held] if task is not None else held
    return (yield from _query([*dict.fromkeys([*things, *known.places])], known))


def _query(names: Sequence[str], known: KnownTable, doubted: tuple[str, ...] = ()) -> SceneQuery:
    """Query the positions of these things, the contents of these places, and the gripper.

    The position of a thing must agree with the contents of the places, else the known position
    remains, and a new thing is ignored: with one wrong answer in twenty, every table of five
    things would otherwise be remembered wrongly. Without known things every answer is accepted.
    """
    places = [name for name in names if name.endswith(RECEPTACLES)]
    things = [name for name in names if name not in places]
    answers = yield [
        *(f'Where is the {name}?' for name in things),
        *(f'What is {in_or_on(name)} the {name}?' for name in places),
        HELD,
        *([COUNT] if doubted else []),
    ]
    resolver = _NameResolver((*names, *known.where, *known.places))
    end = len(things) + len(places)
    where, inside, held, count = (
        answers[: len(things)],
        answers[len(things) : end],
        answers[end],
        answers[end + 1 :],
    )
    visible = sum(place != FLOOR for place in known.where.values())
    fewer = not all(n.strip().isdecimal() and int(n) >= visible for n in count)
    lost = tuple(name for name in doubted if not resolver.in_any(name, answers))
    lost = tuple(name for name in lost if known.where.get(name) != FLOOR)  # out of sight
    gone = tuple(name for name in lost if fewer or name in known.places)
    holds = dict(zip(places, inside, strict=True)) | {ROBOT: held}
    lie = {name: place for name, place in known.where.items() if name not in gone}
    facts = []
    for name, answer in zip(things, where, strict=True):
        place, holders = resolver.place(name, answer), resolver.holders(name, holds)
        beside = place == TABLE and known.beside.get(name)  # the known position is more precise
        unseen = name in doubted and not holders and place != FLOOR
        agree = holders == {place} & {*holds} or not known.where
        if place and agree and not beside and not unseen and name not in gone:
            facts.append((name, 'object', f'{name}: {position(place)}'))
            lie[name] = place
    contents = {
        place: ' and '.join(f'the {thing}' for thing in sorted(lie) if lie[thing] == place)
        for place in places
    }
    facts += [
        (name, 'place', f'{name}: holds {contents[name] or "nothing"}')
        for name in places
        if name not in gone
    ]
    held = next((f'the {name}' for name, place in lie.items() if place == ROBOT), 'nothing')
    return SceneFacts((*facts, (ROBOT, 'agent', f'{ROBOT}: holds {held}')), gone)


class _NameResolver:
    """Resolves a name in an answer: the known thing of its colour, where only one has it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        colours = Counter(name.split()[0] for name in self._names)
        self._unique = {
            name.split()[0]: name for name in self._names if colours[name.split()[0]] == 1
        }

    def in_any(self, name: str, answers: Sequence[str]) -> bool:
        """Return whether one of the answers names a thing."""
        return any(self._resolve(n) == name for answer in answers for n in NAMED.findall(answer))

    def holders(self, name: str, holds: Mapping[str, str]) -> set[str]:
        """Return the places whose answers contain a thing."""
        return {place for place, answer in holds.items() if self.in_any(name, [answer])}

    def place(self, name: str, answer: str) -> str:
        """Return the position of a thing: a known place, table, floor or robot, else ''."""
        place = next(iter(read_table([f'{name}: {answer.strip()}']).where.values()), '')
        place = self._resolve(place) if ' ' in place else place
        known = place in self._names and place.endswith(RECEPTACLES)
        return place if known or place in (TABLE, FLOOR, ROBOT) else ''

    def _resolve(self, name: str) -> str:
        return name if name in self._names else self._unique.get(name.split()[0], name)
