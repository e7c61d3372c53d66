"""Real-time chunking as published: guidance through the Jacobian of the denoising step.

    v <- v - min(c / r^2, beta) J^T diag(w) (A - x_hat),  x_hat = x - t v(x, t),  J = dx_hat / dx

A are the leftover actions and w their weights. t = 1 is noise; the paper counts tau = 1 - t, and
its v has the opposite sign. A step costs a backward pass through the action expert, so this method
is measured but not served. The engine prefills the prefixes; noise and Euler steps are the
engine's as well.

Source: Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies",
equation 2 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from embodied_kv.engine.denoise import noise
from embodied_kv.engine.guidance import gain, leftover
from embodied_kv.kv.arena import Arena
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.policy import Policy
from training.common.views import PrefixCache, SuffixCache
from training.evaluate.actors import Chunking, Served
from training.evaluate.cases import Choice, Frame

Velocity = Callable[[Tensor, Tensor], Tensor]  # x [B, chunk, dim], its flow time [] -> like x


def denoised(
    velocity: Velocity, x: Tensor, steps: int, target: Tensor, weights: Tensor, most: float
) -> Tensor:
    """Return the actions denoised from noise x [B, chunk, dim] by guided Euler steps.

    steps: number of Euler steps. target: like x. weights: [B, chunk, 1]. most: beta, the maximum
    weight of guidance.
    """
    times = [1.0 + step * (-1.0 / steps) for step in range(steps)]
    times = torch.tensor(times, dtype=x.dtype, device=x.device)
    with torch.enable_grad():
        for time, pull in zip(times, gain(times, most), strict=True):
            x = x.detach().requires_grad_()
            v = velocity(x, time)
            finished = x - time * v
            error = (target - finished.detach()) * weights
            (corrected,) = torch.autograd.grad(finished, x, error)
            x = x - (v - pull * corrected) / steps
    return x.detach()


class Backward:
    """A policy whose prefixes the engine prefills, and whose chunks are denoised here.

    chunking: its Euler steps, and the schedule, horizon and maximum weight of guidance.
    """

    def __init__(self, policy: Policy, robots: int, chunking: Chunking) -> None:
        self._policy, self._chunking = policy, chunking
        self._engine = Served(policy, 'silent', robots, 1, 1).engine

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        kv = self._engine.kv
        handles = self._engine.prefill([frame.observation for frame in frames])
        with ExitStack() as stack:
            rows = [stack.enter_context(kv.acquire(handle)).row for handle in handles]
            made = self._denoised(frames, prefix_of(kv.prefixes, rows)).cpu().numpy()
        if not np.isfinite(made).all():
            raise FloatingPointError('the policy returned actions that are not finite')
        return [
            Choice(self._policy.actions(values, frame.observation.state))
            for values, frame in zip(made, frames, strict=True)
        ]

    def _denoised(self, frames: Sequence[Frame], prefix: PrefixCache) -> Tensor:
        """Return the normalised actions [frames, chunk, padded_action_dim]."""
        policy, how, c = self._policy, self._chunking, self._policy.config
        shape, seed = (c.chunk_size, c.padded_action_dim), self._engine.config.seed
        noises, targets, weights = [], [], []
        for frame in frames:
            o = frame.observation
            left = leftover(how.guide(frame, c.chunk_size), policy, o.state)
            noises.append(noise(seed, o.robot, o.sequence, shape))
            targets.append(left.actions)
            weights.append(left.weights[:, None])
        x, target, weight = (
            torch.from_numpy(np.stack(part)).to(policy.model.device)
            for part in (noises, targets, weights)
        )
        velocity = velocity_of(policy.model, prefix)
        return denoised(velocity, x, how.euler_steps, target, weight, how.rtc_max_guidance)

    def finish(self) -> None:
        """Do nothing: there is nothing to end."""


def velocity_of(model: Pi05, prefix: PrefixCache) -> Velocity:
    """Return the policy's velocity v for a batch of B prefixes; gradients reach x."""
    view = SuffixCache(prefix, 1, model.config.chunk_size)
    rope = model.suffix_rope(view.positions)

    def velocity(x: Tensor, time: Tensor) -> Tensor:
        with torch.no_grad():
            (modulation,) = model.expert.modulation(time[None])
        return model.velocity(x, modulation, view, rope)

    return velocity


def prefix_of(prefixes: Arena, rows: Sequence[int]) -> PrefixCache:
    """Return a copy of the KV in these rows that gradients may pass through."""
    taken = list(rows)
    lengths = torch.from_numpy(prefixes.positions[taken]).to(prefixes.device)
    cache = PrefixCache(lengths, int(lengths.max()))
    for layer, parts in enumerate(prefixes.layers):  # each [rows, kv_heads, max_tokens, head_dim]
        k, v = (part[taken, :, : int(lengths.max())].transpose(1, 2).clone() for part in parts)
        cache.store(layer, k, k, v)
    return cache
