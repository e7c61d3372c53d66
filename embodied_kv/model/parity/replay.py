"""The values that a policy computes for a recorded case.

The network runs as the engine runs it: valid tokens, packed into a row of the arena. The state is
normalised by the formula alone, without the bound of the engine (`Scaling.bounded`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixAppend, PrefixWrite, SuffixRead
from embodied_kv.model.expert import Modulation, flow_times
from embodied_kv.model.parity.cases import Case, Quantity
from embodied_kv.model.policy import Policy

# EXACT tolerates a different last bit of float64 in numpy's arcsine; float32 must agree.
EXACT, PIXEL, CHUNK, VELOCITY, ROUNDING = 1e-12, 1e-6, 1e-4, 1.5e-4, 1e-6
EMBEDDING, KV = 1e-5, 5e-5
# The last velocity of a chunk differs by 1.9e-4 with AVX-512 and by 6.5e-5 with AVX2, of values up
# to 7: x_t differs by the rounding of nine steps.
LATER_VELOCITY = 5e-4
# For adaptive norms: openpi in JAX encodes the time in float32, with angles up to 1571 rad.
JAX_NORMS = 1e-3


def prefix_arena(
    config: ModelConfig, rows: int, dtype: torch.dtype, device: str | torch.device
) -> Arena:
    """Return an arena with so many rows for the prefixes of a model."""
    b = config.backbone
    return Arena(
        layers=config.kv_layers,
        rows=rows,
        kv_heads=b.kv_heads,
        max_tokens=config.prefix_tokens,
        head_dim=b.head_dim,
        dtype=dtype,
        device=device,
    )


class Run:
    """One observation through the network: its prefix in a row, then its chunk.

    packed: the embedded prefix without the state token, [1, n, width]. state_row: the embedded
    state token, [1, 1, width of its reader]; None without. cache: the view of the suffix.
    """

    def __init__(
        self, policy: Policy, images: Tensor, ids: list[int], state: NDArray, chunk: int
    ) -> None:
        """Write the prefix. images: [present, 3, S, S]. state: normalised, [state_dim]."""
        self._model, c = policy.model, policy.config
        model = self._model
        text = torch.tensor(ids, dtype=torch.int64, device=model.device)
        views = [*model.embed_images(images)]
        views += [views[0][:0]] * min(c.empty_views, c.view_slots - len(views))
        if c.frame:
            frame = model.frame_embeddings()
            views = [torch.cat([frame[:-1], view, frame[-1:]]) for view in views]
        self.packed = torch.cat([*views, model.embed_tokens(text)])[None]
        tokens = self.packed.shape[1]
        self.arena = prefix_arena(c, 1, model.dtype, model.device)
        model.prefill(self.packed, PrefixWrite(self.arena, 1, tokens).bind([0], [tokens]))
        self.state_row: Tensor | None = None
        if c.state_width:
            states = torch.from_numpy(policy.state_token(state))[None].to(model.device)
            self.state_row = model.state_in(states.to(model.dtype))[:, None]
            model.append_state(states, PrefixAppend(self.arena, 1).bind([0], [tokens]))
        self.arena.set_length(0, tokens + c.state_tokens)
        self.cache = SuffixRead(self.arena, 1, chunk, is_causal=c.expert.is_causal).bind([0])
        self.rope = model.suffix_rope(self.cache.positions)

    def denoise(
        self, noise: Tensor, tables: list[Modulation]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the velocities, and x before each step and at the end, [1, chunk, padded]."""
        states, velocities = [noise.to(self._model.device)], []
        for table in tables:
            velocities.append(self._model.velocity(states[-1], table, self.cache, self.rope))
            states.append(states[-1] - velocities[-1] / len(tables))
        return velocities, states


def predict(
    policy: Policy, images: Tensor, ids: list[int], state: NDArray, noise: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the first velocity and the chunk, float32 [1, chunk, padded], on the host.

    images: [present, 3, S, S]. state: normalised, [state_dim]. noise: [1, chunk, padded]. times:
    float32 [steps], from 1 down.
    """
    run = Run(policy, images, ids, state, noise.shape[1])
    tables = policy.model.expert.modulation(times.to(policy.model.device))
    velocities, states = run.denoise(noise, tables)
    return velocities[0].cpu(), states[-1].cpu()


class Replay:
    """One record of a case, computed by the policy of its checkpoint."""

    def __init__(self, case: Case, policy: Policy, record: str) -> None:
        self._case, self._policy, self._record = case, policy, record
        self._state = case.state(record)
        self._ids = policy.prompt_ids(case.instruction(record), self._state)
        self._is_batched = case.checkpoint.kind == 'lerobot'
        processing = policy.processing
        self._normalised = processing.normalizer.state_scale.exact(
            processing.conversion.state(self._state)
        )
        c = policy.config
        self._is_prefix_state = c.state_width > 0 and c.state_reader == 'backbone'
        self._text = case.read(record, 'tokens').shape[1]  # slots
        slots = []
        for _, seen in case.seen_slots(record):
            before, after = [True] * len(c.frame), [True] * (c.frame_tokens - len(c.frame))
            slots += [*before, *[seen] * c.vision.tokens, *after]
        slots += [i < len(self._ids) for i in range(self._text)]
        slots += [True] * self._is_prefix_state
        if 'prefix_pad_mask' in case.expected(record):  # zeros may follow
            slots += [False] * (case.read(record, 'prefix_pad_mask').shape[1] - len(slots))
        self._valid = torch.tensor(slots)
        self._times = case.read(record, 'timesteps')
        expert, encoded = policy.model.expert, case.encoded_times()
        self._tables = expert.modulation(self._times.to(policy.model.device))
        # With the recorded encodings, if there are any, only the network can differ.
        self._recorded = (
            self._tables
            if encoded is None
            else expert.modulation_of(encoded.to(policy.model.device))
        )

    def quantities(self) -> dict[str, Quantity]:
        """Return the computed quantities by the names of the case."""
        images = self._policy.images(self._case.images(self._record))
        chunk = self._policy.config.chunk_size
        run = Run(self._policy, images, self._ids, self._normalised, chunk)
        return {
            **dict(self._state_and_prompt()),
            **dict(self._pictures()),
            **dict(self._prefix(run)),
            **dict(self._suffix(run)),
            **dict(self._actions(run)),
        }

    def _state_and_prompt(self) -> Iterator[tuple[str, Quantity]]:
        c, processing = self._policy.config, self._policy.processing
        scale = processing.normalizer.state_scale
        normalised = self._normalised
        recovered = scale.unnormalise(normalised)
        yield 'state_float32', _exact(self._state.astype(np.float32)[None])
        yield 'state_decoded', _exact(processing.conversion.state(self._state))
        yield 'state_normalised', _exact(normalised[None] if self._is_batched else normalised)
        yield 'state_padded', _exact(_padded(normalised, c.padded_action_dim))
        token = _padded(normalised, c.padded_action_dim).astype(np.float32)
        token = self._policy.state_token(normalised) if c.state_width else token
        yield 'state_model', Quantity(torch.from_numpy(token)[None], ROUNDING)
        yield 'state_unnormalised', _leading(recovered, c.padded_action_dim, ROUNDING)
        ids = _padded(np.array(self._ids), self._text)
        ids[len(self._ids) :] = self._case.padding
        yield 'tokens', _exact(ids[None])
        yield 'token_mask', _exact((np.arange(self._text) < len(self._ids))[None])

    def _pictures(self) -> Iterator[tuple[str, Quantity]]:
        slots = self._case.seen_slots(self._record)
        yield 'image_mask', _exact(np.array([[seen for _, seen in slots]]))
        resize, size = self._policy.processing.resize, self._policy.config.vision.image_size
        views = self._policy.config.views
        for view, image in zip(views, self._case.images(self._record), strict=True):
            if image is None:
                continue
            resized = torch.from_numpy(resize.pad(image, size))
            if resized.dtype == torch.float32:  # LeRobot has channels first
                resized = resized.permute(2, 0, 1)
            yield f'image_resized.{view}', Quantity(resized, PIXEL)
            pixels = self._policy.images([image])
            yield f'image_model.{view}', Quantity(pixels[0], PIXEL)
            yield f'image_model_every_7th.{view}', Quantity(pixels[0, :, ::7, ::7], PIXEL)
            if view == views[0]:
                tower = self._policy.model.vision
                projected = tower.project(tower.encode(tower.embed_patches(pixels)))
                yield 'connector_output', Quantity(projected, EMBEDDING)

    def _prefix(self, run: Run) -> Iterator[tuple[str, Quantity]]:
        """Yield the prefix in the slots of the reference: all views in order, then the text."""
        c, valid = self._policy.config, self._valid

        def scattered(values: Tensor) -> Tensor:
            slots = values.new_zeros(len(valid), *values.shape[1:])
            slots[valid] = values[: int(valid.sum())]
            return slots[None]

        packed, blocks = run.packed[0], np.zeros((1, len(valid)), bool)
        if self._is_prefix_state and run.state_row is not None:
            packed = torch.cat([packed, run.state_row[0]])
            blocks[0, int(valid.nonzero().max())] = True  # its own block
        yield 'prefix_embeddings', Quantity(scattered(packed), EMBEDDING, valid[None])
        there, order = valid.numpy(), np.cumsum(blocks)
        yield 'prefix_pad_mask', _exact(there[None])
        yield 'prefix_att_mask', _exact(blocks)
        sees = there[:, None] & there & (order <= order[:, None])
        yield 'prefix_attention_mask_last_3_rows', _exact(sees[None, -3:])
        yield 'prefix_positions', _exact((valid.cumsum(0) - 1)[None].numpy())
        for name, layer in (('first', 0), ('second', 1), ('last', c.backbone.layers - 1)):
            for kind, rows in zip('kv', run.arena.layers[layer], strict=True):
                value = scattered(rows[0].transpose(0, 1))
                yield f'prefix_{kind}.{name}', Quantity(value, KV, valid[None])

    def _suffix(self, run: Run) -> Iterator[tuple[str, Quantity]]:
        """Yield what the expert reads in the first step: the state token, then the actions."""
        c, model, valid = self._policy.config, self._policy.model, run.packed.shape[1]
        noise, first = self._case.noise().to(model.device), self._recorded[0]
        token = [] if run.state_row is None or self._is_prefix_state else [run.state_row]
        states = len(token)
        valid += 0 if token else c.state_tokens
        embedded = model.expert.embed(noise.to(model.dtype), first)
        hidden = model.expert(embedded, first, run.cache, run.rope)
        suffix = states + c.chunk_size
        yield 'suffix_embeddings_first', Quantity(torch.cat([*token, embedded], 1), EMBEDDING)
        # The last layer's output of the state token is never read, so it is not computed.
        rows = torch.cat([*(torch.zeros_like(row) for row in token), hidden], 1)
        is_action = (torch.arange(suffix) >= states)[None]
        yield 'suffix_hidden_first', Quantity(rows, KV, is_action)
        yield 'suffix_positions', _exact(valid + np.arange(suffix)[None])
        slots = len(self._valid)
        sees = np.ones((1, suffix, slots + suffix), bool)
        sees[..., :slots] = self._valid.numpy()
        sees[:, :states, slots + states :] = False
        if c.expert.is_causal:
            sees[..., slots:] = np.tri(suffix, dtype=bool)
        yield 'suffix_attention_mask', _exact(sees)
        if model.expert.is_adaptive:
            encoded = self._case.encoded_times()
            if encoded is None:
                encoded = model.expert.time_embedding(self._times.to(model.device))
            condition = model.expert.conditioning(encoded[:1].to(model.device))
            yield 'adarms_cond_first', Quantity(condition, EMBEDDING)

    def _actions(self, run: Run) -> Iterator[tuple[str, Quantity]]:
        c, p, case = self._policy.config, self._policy.processing, self._case
        noise, chunks = case.noise(), CHUNK
        velocities, states = run.denoise(noise, self._recorded)
        chunk, last = states[-1], len(velocities) - 1
        if self._recorded is not self._tables:
            yield 'chunk_time32', Quantity(chunk, CHUNK)
            chunk = run.denoise(noise, self._tables)[1][-1]
            chunks = JAX_NORMS if self._policy.model.expert.is_adaptive else CHUNK
            yield 'chunk_time64', Quantity(chunk, CHUNK)
        steps = [0, 1, (last + 1) // 2, last]
        yield 'v_t_steps', _exact(np.array(steps))
        close_velocity = torch.full((len(steps), 1, 1), LATER_VELOCITY)
        close_velocity[0] = VELOCITY
        yield 'v_t', Quantity(torch.stack([velocities[i] for i in steps], 1), close_velocity)
        yield 'x_t', Quantity(torch.stack([states[i] for i in steps], 1), CHUNK)
        times = flow_times(len(self._times), self._policy.sums_times)
        yield 'timesteps', _exact(times.numpy())
        yield 'v_t_first', Quantity(velocities[0], VELOCITY)
        yield 'chunk_padded', Quantity(chunk, chunks)
        yield 'chunk', Quantity(chunk[..., : c.action_dim], chunks)
        y, decoded = chunk[0].cpu().numpy(), p.conversion.state(self._state)

        def close(actions: np.ndarray) -> Tensor:
            """Return tolerances [action_dim]: of the chunk, and of float32 for large values."""
            unit = p.normalizer.action_scale.unit
            return torch.from_numpy(chunks * unit + ROUNDING * (1 + np.abs(actions).max(0)))

        offsets, absolute = p.normalizer.offsets(y), p.normalizer.actions(y, decoded)
        yield 'chunk_unnormalised', _leading(offsets, c.padded_action_dim, close(offsets))
        yield 'chunk_absolute', _leading(absolute, c.padded_action_dim, close(absolute))
        actions = p.actions(y, self._state)
        batched = actions[None] if self._is_batched else actions
        yield 'actions', Quantity(torch.from_numpy(batched), close(actions))
        if 'executed' in case.expected(self._record):  # requested one by one
            shape = case.read(self._record, 'executed').shape
            some = torch.from_numpy(actions[: case.checkpoint.n_action_steps])
            if some.numel() == shape.numel():
                some = some.reshape(shape)
            yield 'executed', Quantity(some, close(actions))


def _exact(value: ArrayLike) -> Quantity:
    return Quantity(torch.from_numpy(np.ascontiguousarray(value)), EXACT)


def _padded(value: np.ndarray, size: int) -> np.ndarray:
    return np.pad(value, (0, size - len(value)))


def _leading(value: np.ndarray, size: int, tolerance: float | Tensor) -> Quantity:
    """Return a quantity of which only the dims of the robot are compared, not the padding."""
    dims = value.shape[-1]
    padded = np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, size - dims)])
    if isinstance(tolerance, Tensor):
        tolerance = torch.cat([tolerance, tolerance.new_zeros(size - dims)])
    where = torch.zeros(padded.shape, dtype=torch.bool)
    where[..., :dims] = True
    return Quantity(torch.from_numpy(padded), tolerance, where)
