"""Normalisation of states and actions: policy units to the values of the network and back.

Policy units are the units of the checkpoint's statistics. Each project has its own `Scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from embodied_kv.config import ModelConfig

Statistics = Mapping[str, NDArray[np.floating]]
# The two statistics that each mode reads: origin and extent.
READS = {'quantiles': ('q01', 'q99'), 'mean_std': ('mean', 'std')}
# (gain, shift) of each mode: quantiles span [-1, 1], a standard deviation is 1.
RANGES = {'quantiles': (2.0, 1.0), 'mean_std': (1.0, 0.0)}
# openpi adds this to every span and deviation, both ways.
OPENPI_EPS = 1e-6
# A joint with quantiles closer than this (rad, m) did not move in the data.
NEAR_CONSTANT = 1e-4
# A number stood still in the data if the network's -1 … 1 spans less than this (rad, m). Its
# normalised value is bounded, because the network was trained with sensor noise alone there.
STILL = 0.01
LARGEST = 10.0  # the bound of the normalised value


@dataclass(frozen=True, eq=False)
class Scaling:
    """`y = (x - origin) / divisor * gain - shift`, `x = (y + shift) / gain * span + origin`.

    statistics, origin, divisor, span: [dims] or [chunk, dims], all of the dtype of the results.
    still: bool [dims] or [chunk, dims], the numbers that stood still in the data. mode:
    'quantiles' or 'mean_std', which determines gain and shift.

    The constructors take `units`: policy units of one SI unit, one number or [dims].
    """

    mode: str
    statistics: Statistics
    origin: NDArray[np.floating]
    divisor: NDArray[np.floating]
    span: NDArray[np.floating]
    still: NDArray[np.bool_]

    @classmethod
    def lerobot(
        cls, mode: str, statistics: Statistics, eps: float = 1e-8, units: ArrayLike = 1.0
    ) -> Scaling:
        """Return the scaling of LeRobot: float32, `eps` for a span of 0 and added to a deviation.

        processor/normalize_processor.py, `_apply_transform`.
        """
        s, low, high = _read(np.float32, mode, statistics)
        still = _still(mode, low, high, units)
        if mode == 'mean_std':
            return cls(mode, s, low, high + np.float32(eps), high, still)
        span = np.where(high == low, np.float32(eps), high - low)
        return cls(mode, s, low, span, span, still)

    @classmethod
    def openpi(cls, mode: str, statistics: Statistics, units: ArrayLike = 1.0) -> Scaling:
        """Return the scaling of openpi: float64, 1e-6 added to every span and deviation.

        transforms.py, `Normalize` and `Unnormalize`.
        """
        s, low, high = _read(np.float64, mode, statistics)
        span = (high if mode == 'mean_std' else high - low) + OPENPI_EPS
        return cls(mode, s, low, span, span, _still(mode, low, high, units))

    @classmethod
    def own(cls, mode: str, statistics: Statistics, units: ArrayLike = 1.0) -> Scaling:
        """Return the scaling of checkpoints of this project: float32, the epsilon of openpi.

        A near-constant joint reads -1, and its action is q01 for any output of the network.
        """
        s, low, high = _read(np.float32, mode, statistics)
        constant = high - low < NEAR_CONSTANT
        span = high - low + np.float32(OPENPI_EPS)
        divisor = np.where(constant, np.float32(np.inf), span)
        span = np.where(constant, np.float32(0), span)
        return cls(mode, s, low, divisor, span, _still(mode, low, high, units))

    @property
    def unit(self) -> NDArray[np.floating]:
        """The extent of one network unit in policy units: [dims] or [chunk, dims]."""
        return self.span / RANGES[self.mode][0]

    def normalise(self, x: ArrayLike) -> NDArray[np.floating]:
        """Return the network's values of x [..., dims] in policy units, within their bounds."""
        return self.bounded(self.exact(x))

    def bounded(self, y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return normalised values [..., dims], within LARGEST of 0 for numbers that stood still.

        Without the bound, a joint that spans 0.9 mrad in the data reads 106 if 0.05 rad away.
        """
        return np.where(self.still, np.clip(y, -LARGEST, LARGEST), y)

    def exact(self, x: ArrayLike) -> NDArray[np.floating]:
        """Return the values of x [..., dims] by the formula alone, as the references do."""
        gain, shift = RANGES[self.mode]
        return (np.asarray(x, self.origin.dtype) - self.origin) / self.divisor * gain - shift

    def unnormalise(self, y: ArrayLike) -> NDArray[np.floating]:
        """Return the policy units of the network's values y [..., dims]."""
        gain, shift = RANGES[self.mode]
        return (np.asarray(y, self.origin.dtype) + shift) / gain * self.span + self.origin


def _read(dtype: DTypeLike, mode: str, given: Statistics) -> tuple[Statistics, NDArray, NDArray]:
    s = {name: np.asarray(values, dtype) for name, values in given.items()}
    low, high = (s[name] for name in READS[mode])
    return s, low, high


def _still(mode: str, low: NDArray, high: NDArray, units: ArrayLike) -> NDArray[np.bool_]:
    extent = 2 * high if mode == 'mean_std' else high - low
    return np.asarray(extent < STILL * np.abs(units))


@dataclass(frozen=True, eq=False)
class Normalizer:
    """The scalings of a checkpoint.

    state_scale: of [state_dim]. action_scale: of [action_dim] or [chunk, action_dim]. relative:
    bool [action_dim]; where true, the action and its statistics are offsets from the observed
    state of the same index.
    """

    state_scale: Scaling
    action_scale: Scaling
    relative: NDArray[np.bool_]

    @classmethod
    def from_quantiles(
        cls,
        state: tuple[ArrayLike, ArrayLike],
        action: tuple[ArrayLike, ArrayLike],
        relative: NDArray[np.bool_],
    ) -> Normalizer:
        """Return the normalizer of this project's checkpoints from (q01, q99) of each part.

        state: [state_dim]. action: [action_dim] or [chunk, action_dim].
        """
        parts = (dict(q01=np.asarray(low), q99=np.asarray(high)) for low, high in (state, action))
        state_scale, action_scale = (Scaling.own('quantiles', part) for part in parts)
        return cls(state_scale, action_scale, relative)

    @classmethod
    def identity(cls, config: ModelConfig) -> Normalizer:
        """Return the normalizer of weights without statistics, which keeps -1 … 1."""
        state, action = ((-np.ones(n), np.ones(n)) for n in (config.state_dim, config.action_dim))
        return cls.from_quantiles(state, action, np.zeros(config.action_dim, bool))

    def state(self, x: ArrayLike) -> NDArray[np.floating]:
        """Return the network's values of a state [..., state_dim]."""
        return self.state_scale.normalise(x)

    def offsets(self, normalised: ArrayLike) -> NDArray[np.floating]:
        """Return the network's [..., chunk, padded] in units; relative actions stay relative."""
        return self.action_scale.unnormalise(np.asarray(normalised)[..., : self.relative.size])

    def actions(self, normalised: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """Return the absolute actions [..., chunk, action_dim] of [..., chunk, padded].

        state: [..., state_dim] of the chunk's observation, from which all its offsets start.
        """
        return self.offsets(normalised) + self._origin(state)

    def targets(self, actions: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """Return the inverse of `actions` without padding or bound: the training targets."""
        x = np.asarray(actions, self.action_scale.origin.dtype) - self._origin(state)
        return self.action_scale.exact(x)

    def _origin(self, state: ArrayLike) -> NDArray[np.floating]:
        """Return [..., 1, action_dim]: the observed state where relative, else 0."""
        dtype = self.action_scale.origin.dtype
        origin = np.zeros((*np.shape(state)[:-1], 1, self.relative.size), dtype)
        dims = np.flatnonzero(self.relative)
        origin[..., dims] = np.asarray(state, dtype)[..., None, dims]
        return origin
