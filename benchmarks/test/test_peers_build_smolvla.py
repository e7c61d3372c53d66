"""LeRobot's SmolVLA is built with the dimensions of a preset and without access to a hub."""

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from benchmarks.common.command import BenchmarkError
from benchmarks.peers import lerobot, smolvla
from embodied_kv.config import TINY, TINY_SMOLVLA

FILES = {
    'configs/types.py': '',
    'policies/smolvla/smolvlm_with_expert.py': """
from transformers import AutoConfig, AutoProcessor, DynamicCache

def get_intermediate_size(width):
    raise AssertionError('of another width')
""",
    'policies/smolvla/modeling_smolvla.py': """
from torch import nn
from lerobot.configs import PreTrainedConfig
from lerobot.utils.import_utils import require_package
from ..utils import populate_queues
from . import smolvlm_with_expert as backbone

class SmolVLAConfig(PreTrainedConfig):
    def __init__(self, **facts):
        vars(self).update(facts)

class VLAFlowMatching(nn.Module):
    def __init__(self, config):
        super().__init__()
        require_package('transformers', extra='smolvla')
        self.config, self.vlm = config, backbone.AutoConfig.from_pretrained('a/b')
        self.tokens = backbone.AutoProcessor.from_pretrained('a/b').tokenizer
        self.mlp = backbone.get_intermediate_size(1)
""",
}


@pytest.fixture
def module(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / 'src' / 'lerobot' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = lerobot.source(tmp_path, smolvla.MODULE)
    with lerobot.imported(package, smolvla.MODULE) as module:
        yield module


def test_it_has_the_dimensions_of_the_preset(module):
    c = TINY_SMOLVLA
    made = smolvla.build(module, c, 'cpu')
    text, vision = made.vlm.text_config, made.vlm.vision_config
    assert made.mlp == c.expert.mlp
    assert made.config.expert_width_multiplier * c.backbone.width == c.expert.width
    assert (text.hidden_size, text.head_dim) == (c.backbone.width, c.backbone.head_dim)
    assert (text.num_attention_heads, text.num_key_value_heads) == (4, 2)
    assert (vision.image_size, vision.patch_size) == (28, 14)
    assert made.config.num_expert_layers == c.backbone.layers
    assert made.config.num_steps == lerobot.STEPS and not made.config.add_image_special_tokens


def test_tokens_around_pictures_are_those_of_the_preset(module):
    made = smolvla.build(module, replace(TINY_SMOLVLA, frame=(7, 9)), 'cpu')
    assert made.config.add_image_special_tokens
    assert (made.tokens.fake_image_token_id, made.tokens.global_image_token_id) == (7, 9)


def test_another_family_is_refused(module):
    with pytest.raises(BenchmarkError, match='tiny has no backbone'):
        smolvla.build(module, TINY, 'cpu')


def test_a_cache_is_cropped_to_a_length_in_every_layer():
    cache = smolvla.cropping(DynamicCache)()
    for layer, tokens in enumerate((5, 3)):
        keys = torch.arange(tokens, dtype=torch.float32).reshape(1, 1, tokens, 1)
        cache.update(keys, keys, layer)
    cache.crop(3)
    assert [layer.keys.flatten().tolist() for layer in cache.layers] == [[0, 1, 2]] * 2
