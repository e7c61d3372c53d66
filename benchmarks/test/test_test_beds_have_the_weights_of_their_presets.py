"""The weights of a test bed have the dimensions of the preset of the same name."""

from dataclasses import replace

import pytest

from benchmarks.common.weights import weights_of
from embodied_kv.config import preset
from embodied_kv.model.checkpoints.open import open_checkpoint


@pytest.mark.parametrize('name', ['tabletop', 'tabletop_long', 'needle'])
def test_a_config_is_that_of_its_preset(name):
    config = open_checkpoint(weights_of(name)).config
    assert replace(config, dtype='float32') == preset(name)
