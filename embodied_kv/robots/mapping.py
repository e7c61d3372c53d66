"""Between a robot's SI units and its policy's numbers, by the contract.

numpy only. `StateMap` makes the policy's state of what the joints say; `ActionMap` makes of the
policy's chunk what the outputs are told, in SI, in the order of the action's own numbers.
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
    """One number of a state or an action.

    name: the checkpoint's, or what is selected. topic, type: of its channel. policy = scale * SI +
    offset; `unit` is the policy's.
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
        """The joint, or the axis of a twist."""
        return limited(self.select)

    @property
    def is_velocity(self) -> bool:
        """Whether it is told how fast, not where."""
        return selects_velocity(self.select)


@dataclass(frozen=True)
class ActionDimension(Dimension):
    """One number of an action. clamp: in the policy's unit."""

    relative: bool
    clamp: tuple[float, float] | None
    binary: bool
    frame: str


def state_dimensions(contract: Contract) -> tuple[Dimension, ...]:
    """The numbers of the state, in the policy's order."""
    return tuple(_dimension(contract, source, i) for source, i in in_order(contract.state))


def action_dimensions(contract: Contract) -> tuple[ActionDimension, ...]:
    """The numbers of an action, in the policy's order."""
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
    """Return a source's number i."""
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
    """dimensions: of the state, in order."""

    def __init__(self, contract: Contract) -> None:
        self.dimensions = state_dimensions(contract)
        self._scale = np.array([d.scale for d in self.dimensions])
        self._offset = np.array([d.offset for d in self.dimensions])

    def policy(
        self,
        positions: Mapping[str, float],
        velocities: Mapping[str, float] = types.MappingProxyType({}),
    ) -> NDArray[np.float64]:
        """SI by joint, or by what is selected of other messages -> the policy's state [D].

        Raises ValueError that names what is missing or not finite.
        """
        si = [
            (velocities if d.is_velocity else positions).get(d.axis, math.nan)
            for d in self.dimensions
        ]
        if unknown := [d.select for d, x in zip(self.dimensions, si, strict=True) if x - x != 0]:
            raise ValueError(f'{unknown[0]} is not told: the state needs it')
        return np.array(si) * self._scale + self._offset


class ActionMap:
    """dimensions: of an action, in order. axes: what each moves, as `limits` names it."""

    def __init__(self, contract: Contract) -> None:
        self.dimensions = action_dimensions(contract)
        self.axes = tuple(d.axis for d in self.dimensions)
        self._scale = np.array([d.scale for d in self.dimensions])
        self._offset = np.array([d.offset for d in self.dimensions])
        bounds = [d.clamp or (-np.inf, np.inf) for d in self.dimensions]
        self._lower, self._upper = np.array(bounds, np.float64).T
        self._binary = np.array([d.binary for d in self.dimensions])

    def si(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        """The policy's absolute actions [..., A] -> SI, float64 [..., A], within their clamps.

        SI of a velocity is per second, whatever the policy counts in.
        """
        x = self._clamped(np.asarray(actions, np.float64))
        return (x - self._offset) / self._scale

    def outside(self, actions: NDArray[np.floating]) -> float:
        """Return the share of values further outside their clamp than the clamp is wide."""
        width = np.where(np.isfinite(self._upper - self._lower), self._upper - self._lower, np.inf)
        far = (actions < self._lower - width) | (actions > self._upper + width)
        return float(far.mean())

    def policy(self, si: NDArray[np.floating]) -> NDArray[np.float64]:
        """The inverse of `si`: what the policy would have said to have this done.

        Within the clamps, a binary number at the nearer of its ends; NaN where nothing is done.
        """
        return self._clamped(np.asarray(si, np.float64) * self._scale + self._offset)

    def _clamped(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.clip(x, self._lower, self._upper)
        with np.errstate(invalid='ignore'):
            nearer = np.where(2 * x > self._lower + self._upper, self._upper, self._lower)
        return np.where(self._binary & ~np.isnan(x), nearer, x)
