"""Missions in parsed form: a sequence of parts, each about some things and a place.

`mission_phrases` puts them into words, and `mission_oracle` plans them.
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from training.planner.simulated_table import PLACE_NAMES, SimulatedTable, ordered

KINDS = ('put', 'take', 'next', 'push', 'back', 'undo', 'say')
ABOUT = ('where', 'inside', 'held', 'moved')  # subjects of `say`


class ImpossibleMissionError(ValueError):
    """Error: a part of a mission is impossible. The message is the end of a sentence."""


@dataclass(frozen=True)
class Which:
    """A set of things: those named, or all of a colour or shape, restricted to a place.

    place: `bin`, `red bin` or `table`; '' for any. but: excluded names. other: all things *not* of
    that colour or shape. Things on the floor are only included by name.
    """

    names: tuple[str, ...] = ()
    colour: str = ''
    shape: str = ''
    place: str = ''
    but: tuple[str, ...] = ()
    other: bool = False

    def of(self, table: SimulatedTable) -> list[str]:
        """Return the things, in the order of `ordered`. Raises ImpossibleMissionError."""
        for name in self.names:
            check_thing(name, table)
        things = self.names or [n for n in table.where if table.where[n] != FLOOR]
        if self.colour or self.shape:
            things = [name for name in things if self._alike(name) != self.other]
            if not things and not self.other:
                raise ImpossibleMissionError(
                    f'I know {"nothing" if self.colour else "no"} {self.word}'
                )
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

    which: the things to move; one thing for `next`, `push` and `back`. stay: things that must not
    move. steps: of `undo`. about: of `say`, one of ABOUT; its thing is `which`.
    """

    kind: str
    which: Which = Which()
    place: str = ''
    side: str = ''
    steps: int = 0
    about: str = ''
    stay: tuple[str, ...] = ()

    @property
    def excludes(self) -> bool:
        """Whether its words name things that are not meant."""
        return bool(self.which.other or self.which.but or self.stay)


@dataclass(frozen=True)
class Mission:
    """The parts in order."""

    parts: tuple[Part, ...]


def place_of(word: str, table: SimulatedTable) -> str:
    """Return the receptacle or table of a word. Raises ImpossibleMissionError if it is not one."""
    if word == TABLE or word in table.places:
        return word
    if word in PLACE_NAMES:
        raise ImpossibleMissionError(f'I know no {word}')
    found = [name for name in table.places if name.endswith(f' {word}')]
    if not found:
        raise ImpossibleMissionError(f'I know no {word}')
    if len(found) > 1:
        raise ImpossibleMissionError(f'I know more than one {word}')
    return found[0]


def check_thing(name: str, table: SimulatedTable) -> None:
    """Raise ImpossibleMissionError for a thing that is absent or cannot be moved."""
    if name in table.places or name in PLACE_NAMES:
        raise ImpossibleMissionError(f'I cannot move the {name}')
    if name not in table.where:
        raise ImpossibleMissionError(f'I know no {name}')
    if table.where[name] == FLOOR:
        raise ImpossibleMissionError(f'the {name} is on the floor')
