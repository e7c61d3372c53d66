"""Missions in their parsed form: parts, one after another, each about some things and a place.

Knows what words mean on a table that memory tells of. Does not know how a mission is said
(`mission_phrases`) or what to do next (`mission_oracle`).
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from training.planner.simulated_table import PLACE_NAMES, SimulatedTable, ordered

KINDS = ('put', 'take', 'next', 'push', 'back', 'undo', 'say')
ABOUT = ('where', 'inside', 'held', 'moved')  # what `say` is about


class Impossible(ValueError):
    """Why a part of a mission has no meaning on this table, in words that end a sentence."""


@dataclass(frozen=True)
class Which:
    """Things in words: those named, or all of a colour or shape, and of those, what lies in place.

    place: as it was said, `bin`, `red bin` or `table`; '' for any. but: names that are left out.
    other: all that is *not* of that colour or shape. What fell on the floor is meant only where it
    is named.
    """

    names: tuple[str, ...] = ()
    colour: str = ''
    shape: str = ''
    place: str = ''
    but: tuple[str, ...] = ()
    other: bool = False

    def of(self, table: SimulatedTable) -> list[str]:
        """The things, in the order of `ordered`. Raises Impossible."""
        for name in self.names:
            check_thing(name, table)
        things = self.names or [n for n in table.where if table.where[n] != FLOOR]
        if self.colour or self.shape:
            things = [name for name in things if self._alike(name) != self.other]
            if not things and not self.other:
                raise Impossible(f'I know {"nothing" if self.colour else "no"} {self.word}')
        if self.place:
            place = place_of(self.place, table)
            things = [name for name in things if table.where[name] == place]
        return ordered(name for name in things if name not in self.but)

    @property
    def word(self) -> str:
        """The colour or shape."""
        return self.colour or self.shape

    def _alike(self, name: str) -> bool:
        return self.word in name.split()


@dataclass(frozen=True)
class Part:
    """One part of a mission. kind: one of KINDS.

    which: things to be put, taken onto the table, brought next to `place`, pushed to a side, or
    put back where they were; of `next`, `push` and `back` one. stay: things that are to be left
    where they are. steps: of `undo`. about: of `say`, one of ABOUT; its thing is `which`.
    """

    kind: str
    which: Which = Which()
    place: str = ''
    side: str = ''
    steps: int = 0
    about: str = ''
    stay: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mission:
    """Parts in the order in which they are done."""

    parts: tuple[Part, ...]


def place_of(word: str, table: SimulatedTable) -> str:
    """The receptacle, or the table, that is meant. Raises Impossible for none, or several."""
    if word == TABLE or word in table.places:
        return word
    if word in PLACE_NAMES:
        raise Impossible(f'I know no {word}')
    found = [name for name in table.places if name.endswith(f' {word}')]
    if not found:
        raise Impossible(f'I know no {word}')
    if len(found) > 1:
        raise Impossible(f'I know more than one {word}')
    return found[0]


def check_thing(name: str, table: SimulatedTable) -> None:
    """Raises Impossible for what is not there, or cannot be moved."""
    if name in table.places or name in PLACE_NAMES:
        raise Impossible(f'I cannot move the {name}')
    if name not in table.where:
        raise Impossible(f'I know no {name}')
    if table.where[name] == FLOOR:
        raise Impossible(f'the {name} is on the floor')
