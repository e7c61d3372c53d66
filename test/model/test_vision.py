"""The vision tower equals transformers' SigLIP, and merges patches in row-major order."""

from dataclasses import replace

import pytest
import torch
from transformers import SiglipVisionConfig, SiglipVisionModel

from embodied_kv.config import TABLETOP, TINY
from embodied_kv.model.random import init_random
from embodied_kv.model.vision import VisionTower, merge_patches


@pytest.fixture
def tower():
    tower = VisionTower(TINY)
    init_random(tower, seed=3)
    return tower.eval()


@torch.inference_mode()
def test_tower_equals_transformers_siglip(tower):
    c = TINY.vision
    theirs = SiglipVisionModel(
        SiglipVisionConfig(
            hidden_size=c.width,
            intermediate_size=c.mlp,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            image_size=c.image_size,
            patch_size=c.patch_size,
            vision_use_head=False,
            attn_implementation='eager',
        )
    ).eval()
    theirs = getattr(theirs, 'vision_model', theirs)
    theirs.load_state_dict(tower.tower.state_dict())
    images = torch.randn(3, 3, c.image_size, c.image_size)
    expected = theirs(images).last_hidden_state
    hidden = tower.encode(tower.embed_patches(images))
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(tower(images), tower.projector(expected), atol=1e-5, rtol=0)


def test_merge_concatenates_the_square_in_row_major_order():
    grid = torch.arange(16.0).view(1, 16, 1)  # four by four patches of one feature
    merged = merge_patches(grid, 2)
    assert merged.tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    assert merge_patches(grid, 1) is grid


def test_tokens_are_as_many_as_the_config_says():
    tower = VisionTower(TABLETOP)
    init_random(tower)
    size = TABLETOP.vision.image_size
    tokens = tower(torch.zeros(2, 3, size, size))
    assert tokens.shape == (2, TABLETOP.vision.tokens, TABLETOP.backbone.width)


def test_images_of_another_size_are_refused(tower):
    with pytest.raises(ValueError, match=r'expected \[B, 3, 28, 28\]'):
        tower(torch.zeros(1, 3, 56, 56))


def test_a_merge_that_does_not_divide_the_grid_is_refused():
    with pytest.raises(ValueError, match='vision.merge 2 does not divide 3'):
        VisionTower(replace(TINY, vision=replace(TINY.vision, image_size=42, merge=2)))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match='vision.heads must divide vision.width 32'):
        VisionTower(replace(TINY, vision=replace(TINY.vision, heads=5)))
