"""A saved planner is loaded unchanged; other weights, dtypes or tokens change the fingerprint."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PLANNER_MISSIONS, PlannerConfig
from embodied_kv.model.planner_checkpoint import load_planner, random_planner, save_planner
from embodied_kv.model.tokenizer import Tokenizer
from training.planner.corpus import planner_tokenizer

CONFIG = PlannerConfig('test', BackboneConfig(32, 2, 4, 2, 8, 48, 512), max_tokens=64)


@pytest.fixture
def planner():
    return random_planner(CONFIG, seed=1)


@pytest.fixture
def folder(planner, tmp_path):
    save_planner(
        tmp_path / 'planner', planner.model.state_dict(), CONFIG, planner.tokenizer, {'made': 'up'}
    )
    return tmp_path / 'planner'


def same(a, b):
    left, right = a.model.state_dict(), b.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_save_then_load_equals_what_was_saved(planner, folder):
    for loaded in (load_planner(folder), load_planner(folder, CONFIG)):
        assert same(loaded, planner)
        assert loaded.config == CONFIG
        assert loaded.fingerprint == planner.fingerprint
        assert loaded.tokenizer.encode('a cube') == planner.tokenizer.encode('a cube')
        assert not any(p.requires_grad for p in loaded.model.parameters())


def test_a_planner_is_replaced_as_a_whole(planner, folder):
    other = random_planner(CONFIG, seed=2)
    save_planner(folder, other.model.state_dict(), CONFIG, other.tokenizer)
    assert same(load_planner(folder), other) and not same(load_planner(folder), planner)
    assert [item.name for item in folder.parent.iterdir()] == ['planner']


def test_weights_are_kept_in_bfloat16_and_used_in_the_dtype_asked_for(planner, folder):
    state = {name: value.bfloat16() for name, value in planner.model.state_dict().items()}
    save_planner(folder, state, CONFIG, planner.tokenizer)
    full = load_planner(folder)
    half = load_planner(folder, replace(CONFIG, dtype='bfloat16'))
    assert (full.model.dtype, half.model.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(full.model.backbone.norm.weight, state['backbone.norm.weight'].float())


def test_the_fingerprint_changes_with_weights_dtype_dimensions_and_words(planner, folder):
    words = planner_tokenizer(512)
    others = [
        random_planner(CONFIG, seed=2),
        random_planner(replace(CONFIG, max_tokens=65), seed=1),
        random_planner(CONFIG, words, seed=1),
        load_planner(folder, replace(CONFIG, dtype='bfloat16')),
    ]
    prints = {planner.fingerprint, *(other.fingerprint for other in others)}
    assert len(prints) == 5
    assert all(len(p) == 32 for p in prints)
    assert random_planner(replace(CONFIG, name='x'), seed=1).fingerprint == planner.fingerprint


def test_random_planners_are_functions_of_their_seed(planner):
    assert same(random_planner(CONFIG, seed=1), planner)
    assert planner.tokenizer.vocab_size == Tokenizer.bytes().vocab_size


def test_the_preset_is_small():
    model = random_planner(PLANNER_MISSIONS).model
    assert 2 * sum(p.numel() for p in model.parameters()) <= 4 * 2**20  # bytes in bfloat16
