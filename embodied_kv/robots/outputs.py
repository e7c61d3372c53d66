"""Assign the numbers of an action to the topics and actions of the controllers."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.robots.contract import Contract
from embodied_kv.robots.mapping import action_dimensions


@dataclass(frozen=True)
class Output:
    """The topic, or the name of the action, of a controller.

    axes: the moved joints or axes, in the order of the message. index: their places in the action.
    is_velocity: whether the controller takes velocities. frame: of a twist. max_effort: of a
    gripper's action, in N or Nm; 0 keeps the default of its driver.
    """

    topic: str
    type: str
    axes: tuple[str, ...]
    index: tuple[int, ...]
    is_velocity: bool
    frame: str
    max_effort: float = 0.0


def outputs(contract: Contract) -> tuple[Output, ...]:
    """Return one output for each topic or action, in the order of the contract."""
    groups: dict[str, list[int]] = {}
    dimensions = action_dimensions(contract)
    places = {dimension.select: place for place, dimension in enumerate(dimensions)}
    efforts: dict[str, float] = {}
    for source in contract.action:
        efforts.setdefault(source.channel.topic, source.max_effort)
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
                max_effort=efforts[topic],
            )
        )
    return tuple(found)
