"""Which numbers of an action go to which topic: one message each, as its controller wants it."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.robots.contract import Contract
from embodied_kv.robots.mapping import action_dimensions


@dataclass(frozen=True)
class Output:
    """A controller's topic. axes: what is moved, in the order of the message.

    index: places of these in the action. is_velocity: told how fast, not where. frame: of a twist.
    """

    topic: str
    type: str
    axes: tuple[str, ...]
    index: tuple[int, ...]
    is_velocity: bool
    frame: str


def outputs(contract: Contract) -> tuple[Output, ...]:
    """One for each topic, in the order of the contract."""
    groups: dict[str, list[int]] = {}
    dimensions = action_dimensions(contract)
    places = {dimension.select: place for place, dimension in enumerate(dimensions)}
    for source in contract.action:
        groups.setdefault(source.channel.topic, []).extend(places[name] for name in source.select)
    found = []
    for topic, index in groups.items():
        first = dimensions[index[0]]
        found.append(
            Output(
                topic=topic,
                type=first.type,
                axes=tuple(dimensions[i].axis for i in index),
                index=tuple(index),
                is_velocity=first.is_velocity,
                frame=first.frame,
            )
        )
    return tuple(found)
