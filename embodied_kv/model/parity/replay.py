"""From a raw observation to the action, by a policy as it is served: every quantity on the way.

Knows what a recorded case may hold, and how close to it ours has to be. The network runs as the
engine runs it: only valid tokens, packed into a row of the arena; on the case's noise and times.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite, SuffixRead
from embodied_kv.model.parity.quantity import Quantity
from embodied_kv.model.parity.recorded import Case, grid
from embodied_kv.model.policy import Policy

# EXACT lets the arcsine of another numpy differ in its last bit of float64; float32 has to agree.
EXACT, PIXEL, CHUNK, VELOCITY, ROUNDING = 1e-12, 1e-6, 1e-4, 1.5e-4, 1e-6


def predict(
    policy: Policy, images: Tensor, ids: list[int], noise: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """The first velocity and the chunk, float32 [1, chunk, padded], on the host.

    images: [present, 3, S, S]. noise: [1, chunk, padded]. times: float32 [steps], from 1 down.
    """
    model, b = policy.model, policy.config.backbone
    views = model.embed_images(images).flatten(0, 1)
    packed = torch.cat([views, model.embed_tokens(torch.tensor(ids, device=model.device))])[None]
    tokens, chunk = packed.shape[1], noise.shape[1]
    arena = Arena(
        layers=b.layers,
        rows=1,
        kv_heads=b.kv_heads,
        max_tokens=policy.config.prefix_tokens,
        head_dim=b.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    model.prefill(packed, PrefixWrite(arena, 1, tokens).bind([0], [tokens]))
    arena.set_length(0, tokens)
    cache = SuffixRead(arena, 1, chunk).bind([0])
    rope = model.suffix_rope(cache.positions)
    x, first = noise.to(model.device), None
    for table in model.expert.modulation(times.to(model.device)):
        velocity = model.velocity(x, table, cache, rope)
        first = velocity if first is None else first
        x = x - velocity / len(times)
    return first.cpu(), x.cpu()


class Replay:
    """One record of a case, computed by its policy."""

    def __init__(self, case: Case, policy: Policy, record: str) -> None:
        self._case, self._policy, self._record = case, policy, record
        self._state = case.state(record)
        self._ids = policy.prompt_ids(case.instruction(record), self._state)

    def quantities(self) -> dict[str, Quantity]:
        """Ours, by the names that cases use."""
        return dict(self._observed()) | dict(self._pictures()) | dict(self._acted())

    def _observed(self) -> Iterator[tuple[str, Quantity]]:
        """State and prompt."""
        c, processing = self._policy.config, self._policy.processing
        normalised = processing.state(self._state)
        recovered = processing.normalizer.state_scale.unnormalise(normalised)
        yield 'state_float32', _exact(self._state.astype(np.float32)[None])
        yield 'state_decoded', _exact(processing.conversion.state(self._state))
        batched = self._case.checkpoint.kind == 'lerobot'
        yield 'state_normalised', _exact(normalised[None] if batched else normalised)
        yield 'state_padded', _exact(_padded(normalised, c.padded_action_dim))
        yield 'state_unnormalised', _leading(recovered, c.padded_action_dim, ROUNDING)
        yield 'tokens', _exact(_padded(np.array(self._ids), c.max_text)[None])
        yield 'token_mask', _exact((np.arange(c.max_text) < len(self._ids))[None])

    def _pictures(self) -> Iterator[tuple[str, Quantity]]:
        slots = self._case.seen_slots(self._record)
        yield 'image_mask', _exact(np.array([[seen for _, seen in slots]]))
        resize, size = self._policy.processing.resize, self._policy.config.vision.image_size
        views = self._policy.config.views
        for view, image in zip(views, self._case.images(self._record), strict=True):
            if image is None:
                continue
            resized = torch.from_numpy(resize.pad(image, size))
            if resized.dtype == torch.float32:  # as LeRobot has it: channels first
                resized = resized.permute(2, 0, 1)
            yield f'image_resized.{view}', Quantity(resized, PIXEL)
            yield f'image_model.{view}', Quantity(self._policy.images([image])[0], PIXEL)

    def _acted(self) -> Iterator[tuple[str, Quantity]]:
        """The network, and what becomes of its chunk."""
        c, p, case = self._policy.config, self._policy.processing, self._case
        times = case.read(self._record, 'timesteps')
        images = self._policy.images(case.images(self._record))
        first, chunk = predict(self._policy, images, self._ids, case.noise(), times)
        yield 'timesteps', Quantity(grid(len(times)), ROUNDING)
        yield 'v_t_first', Quantity(first, VELOCITY)
        yield 'chunk_padded', Quantity(chunk, CHUNK)
        yield 'chunk', Quantity(chunk[..., : c.action_dim], CHUNK)
        y, decoded = chunk[0].numpy(), p.conversion.state(self._state)
        offsets, absolute = p.normalizer.offsets(y), p.normalizer.actions(y, decoded)
        yield 'chunk_unnormalised', _leading(offsets, c.padded_action_dim, self._close(offsets))
        yield 'chunk_absolute', _leading(absolute, c.padded_action_dim, self._close(absolute))
        actions = p.actions(y, self._state)
        batched = actions[None] if case.checkpoint.kind == 'lerobot' else actions
        yield 'actions', Quantity(torch.from_numpy(batched), self._close(actions))
        if 'executed' in case.expected(self._record):  # one by one, as they were asked for
            shape = case.read(self._record, 'executed').shape
            some = torch.from_numpy(actions[: case.checkpoint.n_action_steps])
            if some.numel() == shape.numel():
                some = some.reshape(shape)
            yield 'executed', Quantity(some, self._close(actions))

    def _close(self, actions: np.ndarray) -> Tensor:
        """Tolerances [action_dim]: the chunk's in units, and float32's of large values."""
        unit = self._policy.processing.normalizer.action_scale.unit
        return torch.from_numpy(CHUNK * unit + ROUNDING * (1 + np.abs(actions).max(0)))


def _exact(value: ArrayLike) -> Quantity:
    return Quantity(torch.from_numpy(np.ascontiguousarray(value)), EXACT)


def _padded(value: np.ndarray, size: int) -> np.ndarray:
    return np.pad(value, (0, size - len(value)))


def _leading(value: np.ndarray, size: int, tolerance: float | Tensor) -> Quantity:
    """Of a recorded vector of all padded dims, those of the robot: the network has no others."""
    dims = value.shape[-1]
    padded = np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, size - dims)])
    if isinstance(tolerance, Tensor):
        tolerance = torch.cat([tolerance, tolerance.new_zeros(size - dims)])
    where = torch.zeros(padded.shape, dtype=torch.bool)
    where[..., :dims] = True
    return Quantity(torch.from_numpy(padded), tolerance, where)
