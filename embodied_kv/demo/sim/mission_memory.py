"""A table read back from the sentences of memory, so that the rules can plan from memory alone.

Knows the sentences that `mission_table` writes, and every way to say an instruction. Does not know
who wrote them: what is no such sentence is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from embodied_kv.demo.sim.household import ROBOT, TABLES
from embodied_kv.demo.sim.language import where_is
from embodied_kv.demo.sim.mission_table import FLOOR, TABLE, KnownTable, Record
from embodied_kv.demo.sim.scene import MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.tabletop import Truth
from embodied_kv.demo.sim.tasks import PHRASES, Task
from embodied_kv.text import shown

NAME = r'\w+ \w+'
WAYS = (dict(on='into', off='out of'), dict(on='on', off='off'), dict(on='onto', off='off'))
INSTRUCTIONS = [
    (
        family,
        re.compile(
            words.format(x=f'(?P<x>{NAME})', y=f'(?P<y>{NAME})', side='(?P<s>left|right)', **way)
        ),
    )
    for family, phrases in PHRASES.items()
    for words in phrases
    for way in WAYS
]
THING = re.compile(rf'({NAME}): (in|on|next to|held by) the (.+)')
HOLDS = re.compile(rf'({NAME}): holds (.+)')
RECORD = re.compile(rf'task (\d+): (.+?)(?:, from the (table|{NAME})|(, not finished))')


def parse_task(words: str) -> Task | None:
    """The task of an instruction, however it is said; None for what is no instruction."""
    for family, template in INSTRUCTIONS:
        if match := template.fullmatch(words):
            named = match.groupdict()
            return Task(family, named['x'], named.get('y') or '', named.get('s') or '')
    return None


def refusal(instruction: str, known: KnownTable) -> str:
    """Why a planner's instruction is never told, '' where it may be.

    It is none of this robot, or it names what nobody has seen.
    """
    said = f"the planner said '{shown(instruction)}'"
    if (task := parse_task(instruction)) is None:
        return f'{said}, which is no instruction'
    there = {'', *known.where, *known.places}
    missing = [name for name in (task.target, task.place) if name not in there]
    return f'{said}, but no {missing[0]} has been seen' if missing else ''


def true_table(truth: Truth) -> KnownTable:
    """What lies where, in words, without any record."""
    names = [thing.name for thing in truth.things if thing.shape in MOVABLE]
    places = tuple(thing.name for thing in truth.things if thing.shape in RECEPTACLES)
    lying = read_table(f'{name}: {where_is(name, truth)[-1]}' for name in names)
    return KnownTable(lying.where, places, lying.beside)


def read_table(texts: Iterable[str]) -> KnownTable:
    """The table that these sentences tell of; records in the order in which they were made.

    Of two sentences about one thing the later counts.
    """
    where: dict[str, str] = {}
    beside: dict[str, str] = {}
    places: dict[str, None] = {}
    records: dict[int, Record] = {}
    for text in texts:
        if match := THING.fullmatch(text):
            name, way, place = match.groups()
            where[name], said = _lies(way, place)
            beside.pop(name, None)
            beside.update({name: said} if said else {})
        elif match := HOLDS.fullmatch(text):
            places[match[1]] = None
        elif (match := RECORD.fullmatch(text)) and (task := parse_task(match[2])):
            plain = task.phrase(0) == match[2]
            record = Record(task, match[3] or '', not match[4], '' if plain else match[2])
            records.pop(int(match[1]), None)
            records[int(match[1])] = record
    return KnownTable(where, tuple(places), beside, records, _lay(where, records))


def _lies(way: str, place: str) -> tuple[str, str]:
    """Where a thing is, and what else is said of it."""
    if place in (TABLE, FLOOR, ROBOT, *TABLES):
        return place, ''
    if way == 'next to' or place in ('left', 'right'):
        return TABLE, f'{way} the {place}'
    return place, ''


def _lay(where: dict[str, str], records: dict[int, Record]) -> str:
    """Where the held thing lay, by its newest record."""
    held = [name for name, place in where.items() if place == ROBOT]
    return next(_origins(held, records), TABLE)


def _origins(held: list[str], records: dict[int, Record]) -> Iterator[str]:
    for record in reversed(records.values()):
        if record.task.target in held and record.origin:
            yield record.origin
