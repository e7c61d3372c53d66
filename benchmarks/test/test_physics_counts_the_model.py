"""The floor that benchmarks print counts the weights that the model really has."""

import pytest
import torch

from benchmarks.common import physics
from embodied_kv.config import PRESETS
from embodied_kv.model.pi05 import Pi05


def matrices(module):
    """Return the number of entries in the matrices of decoder layers."""
    return sum(
        parameter.numel()
        for layer in module.layers
        for name, parameter in layer.named_parameters()
        if parameter.ndim == 2 and 'norm' not in name
    )


@pytest.mark.parametrize('name', PRESETS)
def test_weights_are_those_of_the_model(name):
    config = PRESETS[name]
    with torch.device('meta'):
        model = Pi05(config)
    assert physics.backbone_weights(config) == matrices(model.backbone)
    assert physics.expert_weights(config) == matrices(model.expert)


def test_a_batch_reads_the_weights_once():
    config = PRESETS['pi05_small']
    one, many = (physics.decode_step(config, 100, batch) for batch in (1, 8))
    assert many['flops'] == 8 * one['flops']
    weights = one['bytes'] - 100 * config.kv_bytes_per_token
    assert many['bytes'] == weights + 8 * 100 * config.kv_bytes_per_token
