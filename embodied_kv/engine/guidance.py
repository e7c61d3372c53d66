"""Real-time chunking: a new chunk continues the actions of the running one.

Flow time is 1 for noise and 0 for the finished action. One graph serves every delay, because all
that differs between chunks is in buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.expert import Modulation
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import Fields, StepInputs
from embodied_kv.types import Guide

Velocity = Callable[[Modulation], Tensor]

MOST = 1e9  # upper bound of a given action, normalised; beyond it results are not finite


@dataclass(frozen=True, eq=False)
class LeftoverActions:
    """The actions of a `types.Guide`, in the values of the network.

    actions: float32 [chunk, padded_action_dim], normalised, 0 where nothing is planned. delay:
    number of first actions that are given. weights: float32 [chunk].
    """

    actions: np.ndarray
    delay: int
    weights: np.ndarray


def leftover(guide: Guide | None, policy: Policy, state: np.ndarray) -> LeftoverActions | None:
    """Return the leftover actions of a guide for a chunk from state [state_dim]; None without.

    The guide's actions are absolute; where the policy expresses actions as offsets, they become
    offsets from the new state. The delay is limited to the planned actions and to the longest
    action prefix that the policy was trained with. Raises ValueError for another shape, actions
    beyond MOST, a delay that leaves nothing to denoise, or invalid weights.
    """
    if guide is None:
        return None
    c = policy.config
    shape = c.chunk_size, c.action_dim
    if np.shape(guide.actions) != shape or np.shape(guide.weights) != shape[:1]:
        raise ValueError(
            f'a guide must have {shape} actions and {shape[:1]} weights (got '
            f'{np.shape(guide.actions)} and {np.shape(guide.weights)})'
        )
    if not 0 <= guide.delay < c.chunk_size:
        raise ValueError(f'delay must be from 0 to {c.chunk_size - 1} actions (got {guide.delay})')
    if not ((guide.weights >= 0) & (guide.weights <= 1)).all():
        raise ValueError(f'weights of a guide must be from 0 to 1 (got {guide.weights})')
    finite = np.isfinite(guide.actions).all(1)
    known = len(finite) if finite.all() else int(finite.argmin())
    actions = np.zeros((c.chunk_size, c.padded_action_dim), np.float32)
    with np.errstate(over='ignore', invalid='ignore'):
        actions[:known] = policy.targets(guide.actions, state)[:known]
    if not (np.abs(actions) <= MOST).all():
        raise ValueError(
            f'actions of a guide must be at most {MOST:g}, normalised (got up to '
            f"{np.abs(guide.actions[:known]).max():g} in the policy's units)"
        )
    weights = np.where(np.arange(c.chunk_size) < known, guide.weights, 0).astype(np.float32)
    actions[:, : c.action_dim] = policy.processing.normalizer.action_scale.bounded(
        actions[:, : c.action_dim]
    )
    return LeftoverActions(actions, min(guide.delay, known, policy.max_action_prefix), weights)


@dataclass(frozen=True, eq=False)
class Steps:
    """The Euler steps of all permitted counts, concatenated.

    tables: the parts of the modulation, each [entries, norms, width]. times, counts: float32
    [entries], begin of a step, and number of steps of its chunk. index: int64 [1], the next entry.
    """

    tables: tuple[Tensor, ...]
    times: Tensor
    counts: Tensor
    index: Tensor

    def modulation(self) -> Modulation:
        """Return the modulation of the next step."""
        return Modulation(*(table.index_select(0, self.index)[0] for table in self.tables))


class Off:
    """No real-time chunking: every chunk is denoised from noise alone."""

    buffers: Sequence[Buffer] = ()

    def __init__(
        self, model: Pi05, steps: Steps, inputs: StepInputs, robots: int, max_guidance: float
    ) -> None:
        self._model, self._steps = model, steps

    @staticmethod
    def fields(robots: int, chunk: int, dim: int) -> Fields:
        """Return the fields of the step's inputs that this mode needs."""
        return {}

    def bind(self, leftovers: Sequence[LeftoverActions | None], noise: np.ndarray) -> None:
        """Bind the next chunks: the leftover of each, and its noise [slots, chunk, dim]."""

    def update(self, x: Tensor, velocity: Velocity) -> Tensor:
        """Return what the next step subtracts from x [slots, chunk, dim].

        velocity: v(x, t) of the model, given the modulation of its norms.
        """
        return velocity(self._steps.modulation()) / self._steps.counts[self._steps.index]


class Trained(Off):
    """The first d actions are given, at time 0; the policy was trained to continue them.

    Black et al. 2025, "Training-time action conditioning for real-time chunking" (arXiv
    2512.05964).
    """

    def __init__(
        self, model: Pi05, steps: Steps, inputs: StepInputs, robots: int, max_guidance: float
    ) -> None:
        super().__init__(model, steps, inputs, robots, max_guidance)
        (clean,) = model.expert.modulation(torch.zeros(1, device=model.device))
        self._clean = clean.parts
        self._given = inputs.cut('given', robots, model.config.chunk_size)
        self.buffers = [Buffer('given', self._given.device)]

    @staticmethod
    def fields(robots: int, chunk: int, dim: int) -> Fields:
        return {'given': (robots * chunk, np.int64)}

    def bind(self, leftovers: Sequence[LeftoverActions | None], noise: np.ndarray) -> None:
        self._given.host[: len(leftovers)] = 0
        for slot, leftover in enumerate(leftovers):
            if leftover is not None:
                self._given.host[slot, : leftover.delay] = 1
                noise[slot, : leftover.delay] = leftover.actions[: leftover.delay]

    def update(self, x: Tensor, velocity: Velocity) -> Tensor:
        given = self._given.device[: len(x)]
        moved = velocity(self._modulation(given)) / self._steps.counts[self._steps.index]
        return moved * (1 - given)[..., None]

    def _modulation(self, given: Tensor) -> Modulation:
        """Return tensors [slots, chunk, width] by norm: time 0 where the action is given."""
        step = self._steps.modulation()
        parts = cast(Iterable[tuple[Tensor, Tensor]], zip(step.parts, self._clean, strict=True))
        pairs = (torch.stack(pair).index_select(0, given.flatten()) for pair in parts)
        return Modulation(*(pair.unflatten(0, given.shape).unbind(2) for pair in pairs))


class Guided(Off):
    """Every step is pulled towards the leftover actions, by weights that fall over the chunk.

    Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies",
    equation 2, with the Jacobian of the estimate taken as the identity, as LeRobot does: no
    backward pass.
    """

    def __init__(
        self, model: Pi05, steps: Steps, inputs: StepInputs, robots: int, max_guidance: float
    ) -> None:
        super().__init__(model, steps, inputs, robots, max_guidance)
        self._gains = gain(steps.times, max_guidance)
        c, size = model.config, (robots, model.config.chunk_size)
        self._target = inputs.cut('target', *size, c.padded_action_dim)
        self._weights = inputs.cut('weights', *size, 1)
        parts = dict(target=self._target, weights=self._weights)
        self.buffers = [Buffer(name, part.device) for name, part in parts.items()]

    @staticmethod
    def fields(robots: int, chunk: int, dim: int) -> Fields:
        size = robots * chunk
        return {'target': (size * dim, np.float32), 'weights': (size, np.float32)}

    def bind(self, leftovers: Sequence[LeftoverActions | None], noise: np.ndarray) -> None:
        self._target.host[: len(leftovers)], self._weights.host[: len(leftovers)] = 0, 0
        for slot, leftover in enumerate(leftovers):
            if leftover is not None:
                self._target.host[slot] = leftover.actions
                self._weights.host[slot, :, 0] = leftover.weights

    def update(self, x: Tensor, velocity: Velocity) -> Tensor:
        steps, slots = self._steps, len(x)
        v = velocity(steps.modulation())
        finished = x - steps.times[steps.index] * v
        error = (self._target.device[:slots] - finished) * self._weights.device[:slots]
        return (v - self._gains[steps.index] * error) / steps.counts[steps.index]


MODES: dict[str, type[Off]] = {'off': Off, 'guided': Guided, 'trained': Trained}


def gain(times: Tensor, most: float) -> Tensor:
    """Return the weight of guidance at flow times [...].

    min(c / r^2, most) with c = (1 - tau) / tau, r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2) and tau
    = 1 - time; `most` at pure noise.
    """
    tau = 1 - times.double()
    weight = (tau**2 + (1 - tau) ** 2) / (tau * (1 - tau))  # infinite at both ends
    return weight.clamp(max=most).to(times.dtype)
