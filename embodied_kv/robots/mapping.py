"""Convert between the SI units of a robot and the numbers of its policy, by the contract.

`StateMap` converts joint states to the state of the policy. `ActionMap` converts a chunk of the
policy to SI, in the order of an action. `outputs` assigns the numbers to controllers.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.robots.channels import selects_velocity
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.sources import Source, in_order, limited
from embodied_kv.robots.units import per_si


@dataclass(frozen=True)
class Dimension:
    """One number of a state or an action: policy = scale * SI + offset.

    name: name in the checkpoint, or the selection. topic, type: those of its channel. unit: unit
    of the policy.
    """

    name: str
    topic: str
    type: str
    select: str
    unit: str
    scale: float
    offset: float

    @property
    def axis(self) -> str:
        """Return the joint, or the axis of a twist."""
        return limited(self.select)

    @property
    def is_velocity(self) -> bool:
        """Return whether the number is a velocity and not a position."""
        return selects_velocity(self.select)


@dataclass(frozen=True)
class ActionDimension(Dimension):
    """One number of an action. clamp: bounds in the policy's unit."""

    relative: bool
    clamp: tuple[float, float] | None
    binary: bool
    frame: str


def action_dimensions(contract: Contract) -> tuple[ActionDimension, ...]:
    """Return the numbers of an action, in the policy's order."""
    return tuple(
        ActionDimension(
            **vars(_dimension(contract, source, i)),
            relative=source.each('relative')[i],
            clamp=None if source.clamp is None else source.clamp[i],
            binary=source.each('binary')[i],
            frame=source.frame,
        )
        for source, i in in_order(contract.action)
    )


def _dimension(contract: Contract, source: Source, i: int) -> Dimension:
    return Dimension(
        name=source.names[i] if source.names else source.select[i],
        topic=source.channel.topic,
        type=source.channel.type,
        select=source.select[i],
        unit=source.unit,
        scale=source.each('scale')[i] * per_si(source.unit, contract.dt),
        offset=source.each('offset')[i],
    )


class StateMap:
    """Conversion of joint states to the state of the policy. dimensions: its numbers, in order."""

    def __init__(self, contract: Contract) -> None:
        self.dimensions = tuple(
            _dimension(contract, *number) for number in in_order(contract.state)
        )
        self._scale = np.array([d.scale for d in self.dimensions])
        self._offset = np.array([d.offset for d in self.dimensions])

    def policy(
        self,
        positions: Mapping[str, float],
        velocities: Mapping[str, float] = types.MappingProxyType({}),
    ) -> NDArray[np.float64]:
        """Return the state of the policy [D].

        positions: SI by joint, or by selection for messages other than joint states. velocities:
        SI by joint. Raises ValueError if a number is missing or not finite.
        """
        si = [
            (velocities if d.is_velocity else positions).get(d.axis, math.nan)
            for d in self.dimensions
        ]
        if unknown := [d.select for d, x in zip(self.dimensions, si, strict=True) if x - x != 0]:
            raise ValueError(f'{unknown[0]} must be known and finite: the state contains it')
        return np.array(si) * self._scale + self._offset


class ActionMap:
    """Conversion between actions of the policy and SI.

    dimensions: the numbers of an action, in order. axes: the key in `limits` of each.
    """

    def __init__(self, contract: Contract) -> None:
        self.dimensions = action_dimensions(contract)
        self.axes = tuple(d.axis for d in self.dimensions)
        self._scale = np.array([d.scale for d in self.dimensions])
        self._offset = np.array([d.offset for d in self.dimensions])
        bounds = [d.clamp or (-np.inf, np.inf) for d in self.dimensions]
        self._lower, self._upper = np.array(bounds, np.float64).T
        self._binary = np.array([d.binary for d in self.dimensions])

    def si(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return absolute actions of the policy [..., A] in SI, float64 [..., A], clamped.

        Velocities are per second, whatever the unit of the policy is.
        """
        x = self._clamped(np.asarray(actions, np.float64))
        return (x - self._offset) / self._scale

    def outside(self, actions: NDArray[np.floating]) -> float:
        """Return the share of values further outside their clamp than the clamp is wide."""
        width = np.where(np.isfinite(self._upper - self._lower), self._upper - self._lower, np.inf)
        far = (actions < self._lower - width) | (actions > self._upper + width)
        return float(far.mean())

    def policy(self, si: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the actions of the policy for SI values, as the inverse of `si`.

        Values are clamped, binary numbers are at the nearer bound, and NaN stays NaN.
        """
        return self._clamped(np.asarray(si, np.float64) * self._scale + self._offset)

    def _clamped(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.clip(x, self._lower, self._upper)
        with np.errstate(invalid='ignore'):
            nearer = np.where(2 * x > self._lower + self._upper, self._upper, self._lower)
        return np.where(self._binary & ~np.isnan(x), nearer, x)


@dataclass(frozen=True)
class Output:
    """The topic, or the name of the action, of a controller.

    axes: the moved joints or axes, in the order of the message. index: their places in the action.
    is_velocity: whether the controller takes velocities. frame: frame of a twist. max_effort:
    largest effort (N or Nm) of a gripper's action; 0 keeps the default of its driver.
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
    dimensions = action_dimensions(contract)
    places = {dimension.select: place for place, dimension in enumerate(dimensions)}
    groups: dict[str, list[int]] = {}
    efforts: dict[str, float] = {}
    for source in contract.action:
        efforts.setdefault(source.channel.topic, source.max_effort)
        groups.setdefault(source.channel.topic, []).extend(places[name] for name in source.select)
    return tuple(
        Output(
            topic=topic,
            type=dimensions[index[0]].type,
            axes=tuple(dimensions[i].axis for i in index),
            index=tuple(index),
            is_velocity=dimensions[index[0]].is_velocity,
            frame=dimensions[index[0]].frame,
            max_effort=efforts[topic],
        )
        for topic, index in groups.items()
    )
