"""FastV and HiRED compute kept tokens without the dropped ones, at their original positions."""

import pytest
import torch
from compress_bench_cases import QUESTIONS, observe, policy
from transformers import SiglipVisionConfig, SiglipVisionModel

from benchmarks.compress.cache import Harness
from benchmarks.compress.early import thinned, tower_attention
from benchmarks.compress.kept import kept_by
from benchmarks.compress.ways import ROW, STRICT, Way

LAYERS = 4


@pytest.fixture(scope='module')
def scene():
    tiny = policy()
    harness = Harness(tiny, [Way('fastv', 0.9, STRICT)] * 8, 4)
    return tiny, harness, harness.prefill(observe(1))


@torch.inference_mode()
def prefilled(tiny, seen, kept):
    return thinned(tiny.model, seen.embeddings, kept)


def test_nothing_dropped_is_the_prefill(scene):
    tiny, _, seen = scene
    made = prefilled(tiny, seen, [torch.arange(seen.n)] * LAYERS)
    for own, whole in zip(made.keys, seen.scorer.prefix.keys, strict=True):
        torch.testing.assert_close(own, whole, atol=1e-5, rtol=0)


def test_survivors_stay_where_they_were(scene):
    tiny, _, seen = scene
    some = torch.tensor([0, 3, 5, *range(seen.vision, seen.n)])
    made = prefilled(tiny, seen, [some] * LAYERS)
    first = seen.scorer.prefix.keys[0]  # depends only on a token and its position
    torch.testing.assert_close(made.keys[0], first[:, some], atol=1e-5, rtol=0)
    later = seen.scorer.prefix.keys[1][:, some]
    assert (made.keys[1] - later).abs().max() > 1e-3  # dropped tokens are not attended to


def test_fastv_drops_behind_its_layer_alone(scene):
    tiny, harness, seen = scene
    asked = harness.ask(seen, QUESTIONS[1])
    harness.answers(asked, ())
    for by in (STRICT, ROW):
        kept = [p[0] for p in kept_by(Way('fastv', 0.95, by), seen, asked)]
        assert [len(p) for p in kept[:2]] == [seen.n] * 2
        assert seen.text < len(kept[2]) == len(kept[3]) < seen.n
        assert kept[2][-seen.text :].tolist() == list(range(seen.vision, seen.n))
        made = prefilled(tiny, seen, kept)
        for layer in range(3):  # the input of layer 2 still comes from all tokens
            whole = seen.scorer.prefix.keys[layer][:, kept[layer]]
            torch.testing.assert_close(made.keys[layer], whole, atol=1e-5, rtol=0)


def test_hired_asks_no_question(scene):
    _, harness, seen = scene
    kept = kept_by(Way('hired', 0.95, ROW), seen)
    assert all(torch.equal(p, kept[0]) for p in kept)
    assert seen.text < kept[0].shape[1] == round(0.95 * seen.n)
    said = []
    for question in QUESTIONS[:2]:
        ways = [Way('hired', 0.95, by) for by in (STRICT, ROW)]
        said.append(harness.answers(harness.ask(seen, question), ways))
        assert len(set(said[-1].values())) == 1


def test_below_the_text_no_vision_is_left(scene):
    _, harness, seen = scene
    for method in ('fastv', 'hired'):
        kept = kept_by(Way(method, 0.05, ROW), seen)
        assert kept[3][0].tolist() == list(range(seen.vision, seen.n))


@torch.inference_mode()
def test_tower_attention_equals_the_towers_own(scene):
    tiny = scene[0]
    images = tiny.images(observe(3).images)
    first, last = tower_attention(tiny.model, images)
    c, weights = tiny.config.vision, []
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
    theirs.load_state_dict(tiny.model.vision.tower.state_dict())
    attention = theirs.encoder.layers[0].self_attn
    attention.register_forward_hook(lambda module, given, out: weights.append(out[1]))
    theirs(images)
    torch.testing.assert_close(first, weights[0].mean((1, 2)), atol=1e-6, rtol=0)
    assert torch.equal(first, last)  # the tower has one layer
    torch.testing.assert_close(first.sum(1), torch.ones(2))
