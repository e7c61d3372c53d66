"""A household over time: a seeded sequence of likely updates.

A few hot objects are carried back and forth between a few hot places; everything else stays
unchanged for a long time and is touched now and then. Knows only likelihoods; `household` defines
what an update changes.

Source: KEEP, figure 5 (memories are updated at very different rates).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.planner.household import (
    TABLES,
    Fact,
    Household,
    any_of,
    at,
    into,
    lidded,
    some_of,
    upserts,
)


@dataclass(frozen=True)
class TraceConfig:
    """How likely updates are.

    objects, places: number of hot ones. cold: share of updates that may touch any other. carry:
    share of updates that pick or put; of the others, half open or close, half move.
    """

    objects: int = 3
    places: int = 3
    cold: float = 0.05
    carry: float = 0.8


@dataclass(frozen=True, eq=False)
class Update:
    """The action of the robot, the state after it, and the facts that it changed."""

    words: str
    household: Household
    changed: tuple[Fact, ...]


def draw_trace(
    rng: np.random.Generator,
    household: Household,
    updates: int,
    config: TraceConfig = TraceConfig(),
) -> Iterator[Update]:
    """Yield so many updates, each possible in the state before it; each changes a fact."""
    hot = some_of(rng, household.objects, config.objects)
    places = [*household.receptacles, *TABLES]
    hot_places = some_of(rng, places, config.places)
    for _ in range(updates):
        cold = rng.random() < config.cold
        things = household.objects if cold else hot
        words, after = _act(rng, household, things, places if cold else hot_places, config.carry)
        yield Update(words, after, tuple(upserts(household, after)))
        household = after


def _act(
    rng: np.random.Generator,
    household: Household,
    things: list[str],
    places: list[str],
    carry: float,
) -> tuple[str, Household]:
    """Draw one update. A closed lid in its way is opened instead."""
    held, luck = household.held, rng.random()
    if luck < carry:
        thing, place = held or any_of(rng, things), any_of(rng, places)
        if lid := household.lid(place if held else thing):
            return _toggle(household, lid)
        if held:
            return f'put the {held} {into(place)}', household.put(place)
        return f'pick the {thing}', household.pick(thing)
    receptacles = [name for name in places if name not in TABLES] or household.receptacles
    name = any_of(rng, receptacles)
    if luck < (1 + carry) / 2:
        lids = [*filter(lidded, receptacles)] or [*filter(lidded, household.receptacles)]
        return _toggle(household, any_of(rng, lids))
    if not lidded(name) and (lid := household.lid(name)):
        return _toggle(household, lid)
    place = any_of(rng, [table for table in TABLES if table != household.where[name]])
    return f'move the {name}: {at(place)}', household.move(name, place)


def _toggle(household: Household, name: str) -> tuple[str, Household]:
    if name in household.open:
        return f'close the {name}', household.close_lid(name)
    return f'open the {name}', household.open_lid(name)
