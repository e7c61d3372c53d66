"""Golden files: weights of a small model, inputs, and the recorded results of a reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from embodied_kv.config import ModelConfig
from embodied_kv.kv.views import PrefixWrite, SuffixRead
from embodied_kv.model.backbone import arange_positions
from embodied_kv.model.expert import flow_times
from embodied_kv.model.parity.cases import Quantity, config_parts
from embodied_kv.model.parity.replay import prefix_arena
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.vision import VisionTower
from embodied_kv.model.weights import CheckpointError, Weights, fill

# Tolerances of a float32 implementation; wider ones would accept a wrong epsilon.
EMBEDDINGS, PREFIX, SUFFIX, RESULT, EXACT = 3e-5, 5e-5, 1.5e-4, 1e-4, 0.0
INPUTS = ('images', 'image_masks', 'tokens', 'token_mask', 'noise')
# Metadata with one supported value.
FIXED = {
    'vision_activation': 'gelu_pytorch_tanh',
    'text_activation': 'gelu_pytorch_tanh',
    'expert_activation': 'gelu_pytorch_tanh',
    'attention_bias': 'False',
    'rope_type': 'default',
    'image_channels': '3',
    'dtype': 'float32',
}
# The expert reads the KV of the backbone, so these must be equal.
EQUAL = {
    'expert_layers': 'text_layers',
    'expert_heads': 'text_heads',
    'expert_kv_heads': 'text_kv_heads',
    'expert_head_dim': 'text_head_dim',
    'adarms_cond_dim': 'expert_width',
    'projection_dim': 'text_width',
}
# For each part of a config: its fields, and their keys in the metadata.
KEYS = {
    'vision': dict(
        image_size='image_size',
        patch_size='patch_size',
        width='vision_width',
        layers='vision_layers',
        heads='vision_heads',
        mlp='vision_mlp_dim',
        eps='vision_layer_norm_eps',
    ),
    'backbone': dict(
        width='text_width',
        layers='text_layers',
        heads='text_heads',
        kv_heads='text_kv_heads',
        head_dim='text_head_dim',
        mlp='text_mlp_dim',
        vocab_size='vocab_size',
        rope_theta='rope_theta',
        eps='rms_norm_eps',
    ),
    'expert': dict(
        width='expert_width',
        mlp='expert_mlp_dim',
        time_min_period='time_min_period',
        time_max_period='time_max_period',
    ),
}
FLOATS = {
    *('vision_layer_norm_eps', 'rms_norm_eps', 'rope_theta', 'time_min_period', 'time_max_period'),
}


class Golden:
    """A golden file. inputs: by name. expected: names of the recorded quantities.

    device: of the inputs, the recorded quantities and the model. Raises CheckpointError where the
    file, an input or a dimension is missing or invalid.
    """

    def __init__(self, path: str | Path, device: str = 'cpu') -> None:
        self.device = device
        self._tensors = Weights(path)
        self._weights = Weights(path, ignore=('input.', 'expected.'))
        self.config = config_of(self._tensors.metadata)
        self.inputs = {name: self._input(name) for name in INPUTS}
        self._check_inputs()
        names = (name.partition('expected.') for name in self._tensors.names)
        self.expected = sorted(name for before, found, name in names if found and not before)

    def read(self, name: str) -> Tensor:
        return self._tensors.read(f'expected.{name}').to(self.device)

    def model(self) -> Pi05:
        """Return the model with the weights of the file in float32."""
        try:
            model = Pi05(self.config).requires_grad_(False).eval()
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        fill(model, self._weights, self.config)
        return model.to(self.device)

    def times(self) -> Tensor:
        """Return the times that this package computes, float32 [steps]."""
        steps = number(self._tensors.metadata, 'num_steps')
        return flow_times(int(steps)).to(self.device)

    def _input(self, name: str) -> Tensor:
        if f'input.{name}' not in self._tensors.names:
            raise CheckpointError(f'input.{name} is missing')
        tensor = self._tensors.read(f'input.{name}').to(self.device)
        return tensor.bool() if 'mask' in name else tensor

    def _check_inputs(self) -> None:
        c, size = self.config, self.config.vision.image_size
        samples = len(self.inputs['noise'])
        shapes = {
            'images': (samples, len(c.views), 3, size, size),
            'image_masks': (samples, len(c.views)),
            'tokens': (samples, c.max_text),
            'token_mask': (samples, c.max_text),
            'noise': (samples, c.chunk_size, c.padded_action_dim),
        }
        for name, shape in shapes.items():
            found = tuple(self.inputs[name].shape)
            if found != shape:
                raise CheckpointError(
                    f'input.{name} must be {list(shape)} by the metadata (got {list(found)})'
                )
        if not (self.inputs['image_masks'].any(1) | self.inputs['token_mask'].any(1)).all():
            raise CheckpointError('a sample has no valid token')
        tokens = self.inputs['tokens']
        if tokens.min() < 0 or tokens.max() >= c.backbone.vocab_size:
            raise CheckpointError('input.tokens is beyond the vocabulary')


def number(metadata: Mapping[str, str], key: str) -> int | float:
    """Return a positive number of the metadata, a float for FLOATS. Raises CheckpointError."""
    if key not in metadata:
        raise CheckpointError(f'metadata {key} is missing')
    try:
        value = (float if key in FLOATS else int)(metadata[key])
    except ValueError:
        value = 0
    if not value > 0:
        raise CheckpointError(f'metadata {key} must be a positive number (got {metadata[key]!r})')
    return value


def config_of(metadata: Mapping[str, str]) -> ModelConfig:
    """Return the dimensions in the metadata. Raises CheckpointError that names the key."""
    for key, value in FIXED.items():
        if metadata.get(key, value) != value:
            raise CheckpointError(f'{key} is {metadata[key]}, only {value} is supported')
    for key, other in EQUAL.items():
        if key in metadata and metadata[key] != metadata.get(other):
            raise CheckpointError(
                f'{key} is {metadata[key]}, but {other} is {metadata.get(other)}'
            )
    get = partial(number, metadata)
    try:
        return ModelConfig(
            name=metadata.get('fixture', 'golden'),
            **config_parts(KEYS, get),
            views=tuple(f'camera{i}' for i in range(int(get('num_images')))),
            max_text=int(get('max_token_len')),
            chunk_size=int(get('horizon')),
            state_dim=int(get('action_dim')),
            action_dim=int(get('action_dim')),
            padded_action_dim=int(get('max_action_dim')),
        )
    except ValueError as error:
        raise CheckpointError(str(error)) from error


class Prefix:
    """The prefixes of all samples, packed and prefilled.

    valid: bool [B, L], the slots of the reference: the views in order, then the text.
    """

    def __init__(self, golden: Golden, model: Pi05) -> None:
        c, i = golden.config, golden.inputs
        samples = len(i['images'])
        self.vision = {
            name: value.unflatten(0, (samples, len(c.views)))
            for name, value in _stages(model.vision, i['images'].flatten(0, 1)).items()
        }  # each [B, views, tokens, width]
        views = self.vision['image_embeddings'].flatten(1, 2)
        self.embeddings = torch.cat([views, model.embed_tokens(i['tokens'])], dim=1)
        seen = i['image_masks'].repeat_interleave(c.vision.tokens, dim=1)
        self.valid = torch.cat([seen, i['token_mask']], dim=1)
        self.lengths = self.valid.sum(1).tolist()
        self.arena = prefix_arena(c, samples, torch.float32, golden.device)
        packed = pad_sequence(
            [e[v] for e, v in zip(self.embeddings, self.valid, strict=True)], batch_first=True
        )
        view = PrefixWrite(self.arena, samples, packed.shape[1])
        view.bind(range(samples), self.lengths)
        positions = arange_positions(samples, packed.shape[1], packed.device)
        self.hidden = model.backbone(packed, positions, view)  # [B, longest, width]
        for row, length in enumerate(self.lengths):
            self.arena.set_length(row, length)

    def scatter(self, packed: Tensor, fill: float = 0) -> Tensor:
        """Return packed values [B, longest or more, ...] in the slots [B, L, ...], else `fill`."""
        slots = packed.new_full((*self.valid.shape, *packed.shape[2:]), fill)
        for sample, length in enumerate(self.lengths):
            slots[sample, self.valid[sample]] = packed[sample, :length]
        return slots

    def quantities(self, model: Pi05) -> dict[str, Quantity]:
        valid, samples = self.valid, range(len(self.valid))
        steps = torch.arange(valid.shape[1], device=valid.device)
        packed_index = self.scatter(steps.expand_as(valid), fill=-1)
        last = [int(steps[mask].max()) for mask in valid]
        hidden = torch.stack([self.hidden[s, self.lengths[s] - 1] for s in samples])
        found = {
            'prefix_embeddings': Quantity(self.embeddings, EMBEDDINGS),
            'prefix_pad_mask': Quantity(valid, EXACT),
            # A padded slot repeats the position of the last valid one before it.
            'prefix_position_ids': Quantity(packed_index.cummax(1).values, EXACT),
            'prefix_attention_allowed': Quantity(valid[:, :, None] & valid[:, None], EXACT),
            'prefix_last_hidden': Quantity(self.scatter(self.hidden), PREFIX, valid),
            'last_token_index': Quantity(torch.tensor(last), EXACT),
            'last_token_logits': Quantity(model.backbone.logits(hidden), PREFIX),
        }
        for name, cache in (('k', self.arena.k), ('v', self.arena.v)):
            for layer, rows in enumerate(cache):  # rows [B, kv_heads, tokens, head_dim]
                value = self.scatter(rows.transpose(1, 2)).transpose(1, 2)
                where = valid[:, None].expand(value.shape[:3])
                found[f'prefix_{name}.{layer}'] = Quantity(value, PREFIX, where)
        for name, value in self.vision.items():
            for sample in samples:
                found[f'{name}_sample{sample}'] = Quantity(value[sample], EMBEDDINGS)
        return found


def suffix_quantities(golden: Golden, model: Pi05, prefix: Prefix) -> dict[str, Quantity]:
    """Return the quantities of the action expert, from the recorded states and from its own.

    The recorded times are used: with random weights a velocity depends on the last bit of t.
    """
    noise = golden.inputs['noise']
    samples, chunk = noise.shape[:2]
    times = golden.read('timesteps') if 'timesteps' in golden.expected else golden.times()
    cache = SuffixRead(prefix.arena, samples, chunk).bind(range(samples))
    rope = model.suffix_rope(cache.positions)
    tables = model.expert.modulation(times)

    trajectory = [noise]
    for table in tables:
        x = trajectory[-1]
        trajectory.append(x - model.velocity(x, table, cache, rope) / len(times))
    states = torch.stack(trajectory)
    given = golden.read('x_t') if 'x_t' in golden.expected else states
    if given.shape != states.shape:
        raise CheckpointError(f'x_t is {list(given.shape)}, expected {list(states.shape)}')
    embedded = [model.expert.embed(x, t) for x, t in zip(given[:-1], tables, strict=True)]
    hidden = [model.expert(e, t, cache, rope) for e, t in zip(embedded, tables, strict=True)]
    velocity = [model.velocity(x, t, cache, rope) for x, t in zip(given[:-1], tables, strict=True)]
    encoded = model.expert.time_embedding(times)
    condition = model.expert.conditioning(encoded)[:, None].expand(-1, samples, -1)
    seen = prefix.valid[:, None].expand(-1, chunk, -1)
    every = seen.new_ones(samples, chunk, chunk)

    found = {
        'suffix_position_ids': Quantity(cache.positions, EXACT),
        'suffix_attention_allowed': Quantity(torch.cat([seen, every], dim=2), EXACT),
        'timesteps': Quantity(golden.times(), 1e-6),
        'time_sincos': Quantity(encoded, 1e-6),
        'actions': Quantity(states[-1], RESULT),
        'actions_unpadded': Quantity(states[-1][..., : golden.config.action_dim], RESULT),
    }
    by_step = {
        'adarms_cond': Quantity(condition, 1e-5),
        'suffix_embeddings': Quantity(torch.stack(embedded), EMBEDDINGS),
        'suffix_last_hidden': Quantity(torch.stack(hidden), SUFFIX),
        'x_t': Quantity(states, RESULT),
        'v_t': Quantity(torch.stack(velocity), SUFFIX),
    }
    for name in golden.expected:  # such as v_t_t0.5: the step with time 0.5
        base, _, time = name.rpartition('_t')
        if base in by_step and re.fullmatch(r'\d+\.\d+', time):
            distance, step = (times - float(time)).abs().min(0)
            if distance < 1e-4:
                whole = by_step[base]
                found[name] = Quantity(whole.value[step], whole.tolerance)
    return found | by_step


@torch.inference_mode()
def quantities(golden: Golden) -> dict[str, Quantity]:
    """Return all quantities that a golden file may record, computed by the model."""
    model = golden.model()
    prefix = Prefix(golden, model)
    return prefix.quantities(model) | suffix_quantities(golden, model, prefix)


def _stages(vision: VisionTower, images: Tensor) -> dict[str, Tensor]:
    """Return each stage of the tower by name."""
    patches = vision.embed_patches(images)
    hidden = vision.encode(patches)
    return {
        'vision_patch_embeddings': patches,
        'vision_last_hidden': hidden,
        'image_embeddings': vision.project(hidden),
    }
