"""A missing or damaged planner, or one of other dimensions or tokens, is refused with a reason."""

from dataclasses import replace

import pytest
from safetensors.torch import save_file

from embodied_kv.config import BackboneConfig
from embodied_kv.model import planner_checkpoint
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import (
    bundled_planner,
    load_planner,
    random_planner,
    save_planner,
)
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights
from training.planner.corpus import planner_tokenizer

BACKBONE = BackboneConfig(32, 2, 4, 2, 8, 48, 512)
CONFIG = PlannerConfig('test', BACKBONE, max_tokens=64)


@pytest.fixture
def folder(tmp_path):
    planner = random_planner(CONFIG)
    save_planner(tmp_path / 'p', planner.model.state_dict(), CONFIG, planner.tokenizer)
    return tmp_path / 'p'


def rewrite(folder, **about):
    """Save the same tensors with other metadata; None removes an entry."""
    weights = Weights(folder)
    tensors = {name: weights.read(name) for name in weights.names}
    names = {'config': 'embodied_kv.config', 'digest': 'embodied_kv.planner'}
    there = weights.metadata | {names[name]: value for name, value in about.items()}
    kept = {name: value for name, value in there.items() if value is not None}
    save_file(tensors, folder / 'model.safetensors', kept)


@pytest.mark.parametrize(
    ('config', 'why'),
    [
        (replace(CONFIG, max_tokens=65), 'max_tokens is 64, the model has 65'),
        (
            replace(CONFIG, backbone=replace(BACKBONE, layers=3)),
            'backbone.layers is 2, the model has 3',
        ),
        (
            replace(CONFIG, backbone=replace(BACKBONE, rope_theta=5.0)),
            'backbone.rope_theta is 10000.0, the model has 5.0',
        ),
    ],
)
def test_other_dimensions_are_refused(folder, config, why):
    with pytest.raises(CheckpointError, match=why):
        load_planner(folder, config)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match='does not exist'):
        load_planner(tmp_path)


@pytest.mark.parametrize('cut', [5, 200, -100])
def test_a_cut_file_is_refused(folder, cut):
    file = folder / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match='truncated|not a safetensors file'):
        load_planner(folder)


def test_a_file_that_does_not_say_its_dimensions_is_refused(folder):
    rewrite(folder, config=None)
    with pytest.raises(CheckpointError, match='must have dimensions'):
        load_planner(folder)


@pytest.mark.parametrize('config', ['no json', '{}', '{"backbone": {"width": 3}}'])
def test_a_config_that_is_none_is_refused(folder, config):
    rewrite(folder, config=config)
    with pytest.raises(CheckpointError, match='its config is no planner'):
        load_planner(folder)


def test_a_config_that_was_changed_is_refused(folder):
    rewrite(folder, digest='0' * 16)
    with pytest.raises(CheckpointError, match='not those it was saved with'):
        load_planner(folder)


def test_a_missing_tokenizer_is_refused(folder):
    (folder / 'tokenizer.json').unlink()
    with pytest.raises(CheckpointError, match=r'tokenizer\.json does not exist'):
        load_planner(folder)


def test_another_tokenizer_is_refused(folder):
    planner_tokenizer(512).save(folder / 'tokenizer.json')
    with pytest.raises(CheckpointError, match='not the one that these weights were trained with'):
        load_planner(folder)


def test_more_tokens_than_are_embedded_are_refused():
    small = replace(CONFIG, backbone=replace(BACKBONE, vocab_size=100))
    with pytest.raises(ValueError, match='the tokenizer has 259 tokens, the planner embeds 100'):
        random_planner(small, Tokenizer.bytes())


def test_a_planner_that_does_not_come_with_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(planner_checkpoint, 'ASSETS', tmp_path)
    with pytest.raises(ValueError, match=r"has no planner 'mine'.*.*training\.planner"):
        bundled_planner('mine')
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'model.safetensors').touch()
    assert bundled_planner('mine') == tmp_path / 'mine'
