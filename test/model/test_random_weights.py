"""Random weights depend only on the seed, and activations neither vanish nor explode."""

import torch

from embodied_kv.config import TINY
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite
from embodied_kv.model.backbone import arange_positions
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.random import BLOCK, init_random


def made(seed):
    model = Pi05(TINY)
    init_random(model, seed)
    return model


def test_weights_are_a_function_of_the_seed():
    one, same, other = (made(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_no_parameter_keeps_the_memory_it_came_with():
    model = Pi05(TINY)
    for parameter in model.state_dict().values():
        parameter.fill_(float('nan'))
    init_random(model)
    assert all(parameter.isfinite().all() for parameter in model.state_dict().values())


def test_rows_of_a_large_matrix_differ():
    model = torch.nn.Linear(512, 2 * BLOCK // 512, bias=False)
    init_random(model)
    assert len(model.weight.unique(dim=0)) == len(model.weight)


@torch.inference_mode()
def test_hidden_states_depend_on_the_picture_and_stay_near_one():
    model, size = made(0), TINY.vision.image_size
    images = torch.rand(2, 3, size, size) * 2 - 1
    embeddings = model.embed_images(images)
    tokens = embeddings.shape[1]
    b = TINY.backbone
    arena = Arena(
        layers=b.layers, rows=2, kv_heads=b.kv_heads, max_tokens=tokens, head_dim=b.head_dim,
        dtype=torch.float32,
    )  # fmt: skip
    view = PrefixWrite(arena, 2, tokens).bind([0, 1], [tokens, tokens])
    hidden = model.backbone(embeddings, arange_positions(2, tokens, embeddings.device), view)
    assert 0.3 < hidden.std() < 3
    assert (hidden[0] - hidden[1]).abs().mean() > 0.05
    assert 0.01 < model.backbone.logits(hidden).std() < 10
