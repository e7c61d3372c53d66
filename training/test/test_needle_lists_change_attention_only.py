"""The training of lists asks for all codes of a page and changes the attention of the backbone."""

import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from embodied_kv.config import NEEDLE
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.model.policy import Policy
from embodied_kv.model.weights import CheckpointError, Weights
from training.needle import lists
from training.needle.lists import (
    ATTENTION,
    LISTS,
    ListRecipe,
    ListTrainer,
    is_learnt,
    load_lists,
    main,
    train_lists,
)

SMALL = replace(
    NEEDLE,
    vision=replace(NEEDLE.vision, image_size=48, width=16, mlp=32),
    backbone=replace(NEEDLE.backbone, width=32, layers=4, head_dim=8, mlp=48),
    expert=replace(NEEDLE.expert, width=16, mlp=16),
)
RECIPE = ListRecipe(shown=(21, 36), pages=(3, 2), steps=(2, 1), lists=2)


@pytest.fixture
def trainer():
    torch.set_num_threads(1)
    return ListTrainer(Policy.random(SMALL), RECIPE)


def test_each_question_names_all_colours_and_the_answer_has_their_codes_in_order(trainer):
    batch, words = trainer.batch(0), trainer.tokenizer
    for segment in range(RECIPE.lists):
        own = batch.segment[0] == segment
        asked, said = words.decode(batch.packed[0, own].tolist()).split('?')
        colours = asked.removeprefix('What is ').split(', ')
        assert sorted(colours) == sorted(COLOURS)
        assert [entry.split()[0] for entry in said.split(',')] == colours
        targets = batch.answer[0, own]
        assert words.decode(targets[targets >= 0].tolist()) == said
    assert not torch.equal(batch.packed[0], batch.packed[1])


def test_only_the_attention_and_the_norms_of_the_backbone_change(trainer):
    before = {name: p.clone() for name, p in trainer.reader.model.named_parameters()}
    for step in range(RECIPE.total):
        trainer.learn(trainer.batch(step))
    for name, p in trainer.reader.model.named_parameters():
        assert torch.equal(p, before[name]) != is_learnt(name), name


def test_the_file_has_what_is_learnt_and_nothing_else(trainer, tmp_path):
    trainer.keep(tmp_path)
    weights = Weights(tmp_path / ATTENTION)
    assert set(weights.names) == {name for name in trainer.average if is_learnt(name)}
    with pytest.raises(CheckpointError, match='must have the weights backbone'):
        load_lists(tmp_path)


def test_a_run_saves_its_weights(tmp_path, capsys, monkeypatch):
    class Bundled:
        def load(self):
            return Policy.random(SMALL)

    monkeypatch.setattr(lists, 'open_checkpoint', lambda path, config: Bundled())
    train_lists(tmp_path, RECIPE, minutes=5)
    assert 'step 3: text' in capsys.readouterr().out
    assert '3 steps' in Weights(tmp_path / ATTENTION).metadata['embodied_kv.trained']


def test_the_bundled_weights_replace_those_of_codes():
    policy, weights = load_lists(), Weights(LISTS / ATTENTION)
    for name in weights.names:
        assert torch.equal(policy.model.state_dict()[name], weights.read(name).float())
    assert (LISTS / ATTENTION).stat().st_size < 0.5e6


def test_every_number_of_the_recipe_is_an_option(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['command', '--help'])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out
    assert all(f'--{field.name.replace("_", "-")} ' in said for field in fields(ListRecipe))


def test_pages_of_one_step_are_the_same_each_time(trainer):
    one, again = trainer.batch(1), trainer.batch(1)
    assert np.array_equal(one.cells, again.cells) and torch.equal(one.packed, again.packed)
