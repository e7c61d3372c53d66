"""A policy of small images initialises one that sees more patches."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import TINY, preset
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.random import init_random
from training.common.initial import grow
from training.common.words import train_tokenizer
from training.policy.recipe import PolicyRecipe
from training.policy.trainer import Trainer

TABLE, PROJECTOR = 'vision.tower.embeddings.position_embedding.weight', 'vision.projector.weight'


def config(side, merge, **changes):
    """Return TINY with images of side x side patches."""
    vision = replace(TINY.vision, image_size=side * TINY.vision.patch_size, merge=merge)
    return replace(TINY, vision=vision, **changes)


def made(config, seed):
    model = Pi05.empty(config, 'cpu')
    init_random(model, seed)
    return model


@pytest.fixture(scope='module')
def models():
    """Return a model with 2 x 2 of 4 x 4 patches per token, and one grown to 8 x 8 patches."""
    small, large = made(config(4, 2), 1), made(config(8, 1, name='large'), 2)
    grow(small, large)
    return small, large


def test_what_has_the_same_shape_is_copied(models):
    small, large = models
    values = dict(small.named_parameters())
    for name, p in large.named_parameters():
        if name not in (TABLE, PROJECTOR):
            assert torch.equal(p, values[name]), name


@pytest.mark.parametrize('merge', [1, 2])
def test_a_token_says_what_equal_patches_said_together(models, merge):
    small, _ = models
    large = made(config(8, merge), 3)
    grow(small, large)
    feature = torch.randn(TINY.vision.width, generator=torch.Generator().manual_seed(0))
    before = small.vision.project(feature.expand(1, 16, -1))
    after = large.vision.project(feature.expand(1, 64, -1))
    assert after.shape[1] == 64 // merge**2
    torch.testing.assert_close(after, before[:, :1].expand_as(after))


def test_with_the_same_merge_the_projector_is_the_same():
    small, large = made(config(4, 2), 1), made(config(8, 2), 2)
    grow(small, large)
    assert torch.equal(small.vision.projector.weight, large.vision.projector.weight)


def test_blocks_stay_in_their_quarter():
    """Tokens of 4 x 4 patches become 2 x 2 tokens; each sums its own quarter, row by row."""
    small, large = made(config(4, 4), 1), made(config(4, 2), 2)
    width = TINY.vision.width
    blocks = torch.arange(16.0).repeat_interleave(width)
    small.vision.projector.weight.copy_(blocks.expand(TINY.backbone.width, -1))
    grow(small, large)
    expected = torch.tensor([0 + 1 + 4 + 5, 2 + 3 + 6 + 7, 8 + 9 + 12 + 13, 10 + 11 + 14 + 15.0])
    assert torch.equal(large.vision.projector.weight[0, ::width], expected)


def test_the_position_table_is_interpolated_bilinearly():
    """A table that is linear in row and column stays linear between the old centres."""
    small, large = made(config(4, 2), 1), made(config(8, 1), 2)
    coarse, fine = torch.arange(4) + 0.5, (torch.arange(8) + 0.5) / 2

    def plane(at):
        return (3 * at[:, None] + at[None, :]).flatten()[:, None].expand(-1, TINY.vision.width)

    small.vision.tower.embeddings.position_embedding.weight.copy_(plane(coarse))
    grow(small, large)
    grown = large.vision.tower.embeddings.position_embedding.weight.view(8, 8, -1)
    expected = plane(fine).view(8, 8, -1)
    torch.testing.assert_close(grown[1:-1, 1:-1], expected[1:-1, 1:-1])
    assert torch.equal(grown[0, 0], plane(coarse)[0])  # outside of the centres, the nearest


@pytest.mark.parametrize(
    ('other', 'message'),
    [
        (config(8, 1, chunk_size=7), 'chunk_size is 6, the model has 7'),
        (config(8, 1, views=('front',)), 'views is'),
        (
            config(8, 1, backbone=replace(TINY.backbone, heads=8, head_dim=8)),
            'backbone.heads is 4, the model has 8',
        ),
        (
            config(8, 1, expert=replace(TINY.expert, mlp=32)),
            'expert.mlp is 64, the model has 32',
        ),
        (config(2, 1), 'vision.image_size is 56, the model has 28: that cannot be grown into'),
        (config(8, 4), 'vision.merge is 2, the model has 4'),
    ],
)
def test_another_difference_is_refused_by_name(models, other, message):
    with pytest.raises(ValueError, match=message):
        grow(models[0], Pi05.empty(other, 'cpu'))


def test_the_shipped_policy_grows_into_tabletop_long():
    long, short = preset('tabletop_long'), preset('tabletop')
    assert len(long.views) * long.vision.tokens == 512
    assert (long.backbone, long.expert) == (short.backbone, short.expert)
    trainer = Trainer(long, PolicyRecipe(batch=1), 7, 5)
    tokenizer = train_tokenizer(long.backbone.vocab_size)
    normalizer = trainer.adopt(bundled('tabletop'), tokenizer)
    assert len(tokenizer.encode(' cube')) == 1
    assert normalizer.action_scale.origin.shape == (long.chunk_size, long.action_dim)
    for name, p in trainer.objective.model.named_parameters():
        assert torch.equal(trainer.average[name], p), name
    assert trainer.average[TABLE].shape == (256, 128)
    assert trainer.average[PROJECTOR].shape == (192, 128)
