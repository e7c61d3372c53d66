"""A golden file: a small model's weights, inputs, and what a public reference made of them.

Knows the names in such a file and how its metadata spells the dimensions; not the tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from embodied_kv.config import BackboneConfig, ExpertConfig, ModelConfig, VisionConfig
from embodied_kv.model.parity.recorded import grid
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.weights import CheckpointError, Weights, fill

INPUTS = ('images', 'image_masks', 'tokens', 'token_mask', 'noise')
# What the model is built for; a file that says otherwise cannot be rebuilt.
FIXED = {
    'vision_activation': 'gelu_pytorch_tanh',
    'text_activation': 'gelu_pytorch_tanh',
    'expert_activation': 'gelu_pytorch_tanh',
    'attention_bias': 'False',
    'rope_type': 'default',
    'image_channels': '3',
    'dtype': 'float32',
}
# The expert reads the backbone's KV, so these agree.
EQUAL = {
    'expert_layers': 'text_layers',
    'expert_heads': 'text_heads',
    'expert_kv_heads': 'text_kv_heads',
    'expert_head_dim': 'text_head_dim',
    'adarms_cond_dim': 'expert_width',
    'projection_dim': 'text_width',
}


class Golden:
    """inputs: by name, without `input.`. expected: by name, without `expected.`; read on demand.

    device: that inputs, expected quantities and the model lie on. Raises CheckpointError where the
    file, an input or a dimension is missing or impossible.
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
        """An expected quantity."""
        return self._tensors.read(f'expected.{name}').to(self.device)

    def model(self) -> Pi05:
        """The model, with the file's weights in float32."""
        try:
            model = Pi05(self.config).requires_grad_(False).eval()
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        fill(model, self._weights, self.config)
        return model.to(self.device)

    def times(self) -> Tensor:
        """Our own, float32 [steps]."""
        return grid(number(self._tensors.metadata, 'num_steps')).to(self.device)

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
            there = tuple(self.inputs[name].shape)
            if there != shape:
                raise CheckpointError(
                    f'input.{name} is {list(there)}, its metadata says {list(shape)}'
                )
        if not (self.inputs['image_masks'].any(1) | self.inputs['token_mask'].any(1)).all():
            raise CheckpointError('a sample has no valid token')
        tokens = self.inputs['tokens']
        if tokens.min() < 0 or tokens.max() >= c.backbone.vocab_size:
            raise CheckpointError('input.tokens is beyond the vocabulary')


def number(metadata: Mapping[str, str], key: str, kind: type = int) -> int | float:
    """A positive number of the metadata, where everything is text. Raises CheckpointError."""
    if key not in metadata:
        raise CheckpointError(f'metadata {key} is missing')
    try:
        value = kind(metadata[key])
    except ValueError:
        value = 0
    if not value > 0:
        raise CheckpointError(f'metadata {key} is {metadata[key]!r}, not a positive number')
    return value


def config_of(metadata: Mapping[str, str]) -> ModelConfig:
    """The dimensions that the metadata spells. Raises CheckpointError that names the key."""
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
            vision=VisionConfig(
                image_size=get('image_size'),
                patch_size=get('patch_size'),
                width=get('vision_width'),
                layers=get('vision_layers'),
                heads=get('vision_heads'),
                mlp=get('vision_mlp_dim'),
                eps=get('vision_layer_norm_eps', float),
            ),
            backbone=BackboneConfig(
                width=get('text_width'),
                layers=get('text_layers'),
                heads=get('text_heads'),
                kv_heads=get('text_kv_heads'),
                head_dim=get('text_head_dim'),
                mlp=get('text_mlp_dim'),
                vocab_size=get('vocab_size'),
                rope_theta=get('rope_theta', float),
                eps=get('rms_norm_eps', float),
            ),
            expert=ExpertConfig(
                width=get('expert_width'),
                mlp=get('expert_mlp_dim'),
                time_min_period=get('time_min_period', float),
                time_max_period=get('time_max_period', float),
            ),
            views=tuple(f'camera{i}' for i in range(get('num_images'))),
            max_text=get('max_token_len'),
            chunk_size=get('horizon'),
            state_dim=get('action_dim'),
            action_dim=get('action_dim'),
            padded_action_dim=get('max_action_dim'),
        )
    except ValueError as error:
        raise CheckpointError(str(error)) from error
