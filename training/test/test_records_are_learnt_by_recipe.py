"""A run of the deeper judge depends only on its recipe, and an interrupted run continues."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from embodied_kv.model.weights import Weights
from training.common.learner import TRAINED
from training.judge.file import load_judge
from training.records import gate, trainer
from training.records.records import SEGMENTS
from training.records.trainer import RECORDS, RecordsRecipe, RecordsTrainer, train

SHORT = RecordsRecipe(steps=4, tokens=160, questions=3, ask=0.5)
SMALL = replace(RECORDS, backbone=replace(RECORDS.backbone, layers=3, width=16, mlp=16))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(gate, 'SIZES', (5,))
    monkeypatch.setattr(trainer, 'VALIDATED', 3)
    monkeypatch.setattr(trainer, 'EXAMINED', 3)


def test_lessons_go_down_and_answers_come_later():
    learner = RecordsTrainer(SMALL, replace(SHORT, steps=30))
    batch = SHORT.batch(0)
    values = [learner.learn(batch) for _ in range(12)]
    assert set(values[0]) == {'answer', 'name', 'like', 'value'}
    assert values[-1]['name'] < values[0]['name']
    assert not SHORT.asks(0) and SHORT.asks(2)


def test_prompts_grow():
    recipe = RecordsRecipe(steps=100)
    longest = [recipe.longest(step) for step in range(101)]
    assert longest == sorted(longest) and longest[0] == recipe.short
    assert longest[-1] == SEGMENTS[1]


def test_a_run_in_pieces_equals_a_run(tmp_path, capsys):
    train(tmp_path / 'whole', SHORT, 60.0, SMALL)
    for _ in range(SHORT.steps):
        train(tmp_path / 'pieces', SHORT, 0.0, SMALL)  # one step at least
    whole, pieces = (load_file(tmp_path / n / 'state.safetensors') for n in ('whole', 'pieces'))
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(value, pieces[name]) for name, value in whole.items())
    assert 'step 4 of 4; the gate' in capsys.readouterr().out
    assert load_judge(tmp_path / 'pieces' / 'records.safetensors').config.name == 'records'


def test_another_recipe_does_not_go_on(tmp_path):
    train(tmp_path, SHORT, 0.0, SMALL)
    with pytest.raises(ValueError, match='made by another recipe: rate'):
        train(tmp_path, replace(SHORT, rate=1e-4), 0.0, SMALL)


def test_a_run_starts_from_the_weights_of_another(tmp_path):
    train(tmp_path / 'first', SHORT, 60.0, SMALL)
    first = tmp_path / 'first' / 'records.safetensors'
    trainer = RecordsTrainer(SMALL, replace(SHORT, init=str(first)))
    for name, p in load_judge(first).named_parameters():
        assert torch.equal(p, trainer.average[name]), name
    trainer.keep(tmp_path)
    trained = Weights(tmp_path / 'records.safetensors').metadata[TRAINED]
    assert trained == '4 steps, EMA weights, then 0 steps, EMA weights'
