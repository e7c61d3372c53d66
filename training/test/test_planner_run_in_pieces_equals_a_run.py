"""Interrupted and resumed training gives the weights of an uninterrupted run."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import load_planner
from training.planner.trainer import PlannerRecipe, PlannerTrainer, train

CONFIG = PlannerConfig('test', BackboneConfig(32, 3, 4, 2, 8, 48, 640), max_tokens=1280)
RECIPE = PlannerRecipe(most=(10, 12), records=(5, 6), steps=(2, 2), tokens=600, middle=2, late=3)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp('whole')
    train(out, RECIPE, minutes=60, config=CONFIG)
    return out


def test_a_restored_trainer_goes_on_as_if_it_had_not_stopped(tmp_path):
    one, first, second = (PlannerTrainer(CONFIG, RECIPE) for _ in range(3))
    for trainer in (one, first):
        trainer.learn(trainer.lesson(trainer.step))
    first.store(tmp_path / 'state.safetensors')
    second.restore(tmp_path / 'state.safetensors')
    for trainer in (one, second):
        trainer.learn(trainer.lesson(trainer.step))
    assert one.step == second.step == 2
    for name, value in one.average.items():
        assert torch.equal(value, second.average[name]), name


@pytest.mark.slow
def test_a_run_in_pieces_equals_a_run(whole, tmp_path):
    for _ in range(RECIPE.total):
        train(tmp_path, RECIPE, minutes=0, config=CONFIG)  # one step each
    one, pieces = (load_planner(out / 'planner', CONFIG) for out in (whole, tmp_path))
    assert one.fingerprint == pieces.fingerprint


def test_a_run_leaves_a_planner_its_log_and_its_curves(whole):
    assert {item.name for item in whole.iterdir()} == {
        'planner',
        'state.safetensors',
        'log.csv',
        'curves.png',
    }
    assert 'unseen,exact' in (whole / 'log.csv').read_text()


def test_the_state_of_another_seed_is_refused(whole, tmp_path):
    trainer = PlannerTrainer(CONFIG, replace(RECIPE, seed=1))
    with pytest.raises(ValueError, match='has seed 0: give another --out'):
        trainer.restore(whole / 'state.safetensors')
    damaged = tmp_path / 'state.safetensors'
    damaged.write_bytes(b'nothing')
    with pytest.raises(ValueError, match='is not the state of such a run'):
        trainer.restore(damaged)


def test_every_parameter_learns():
    trainer = PlannerTrainer(CONFIG, RECIPE)
    before = {name: p.detach().clone() for name, p in trainer.objective.named_parameters()}
    for _ in range(2):
        trainer.learn(trainer.lesson(trainer.step))
    same = [n for n, p in trainer.objective.named_parameters() if torch.equal(p, before[n])]
    assert not same


def test_the_rate_rises_stays_and_falls_to_zero():
    recipe = PlannerRecipe(steps=(400, 200, 400))
    assert recipe.learning_rate(0) == pytest.approx(recipe.rate / 100)
    assert recipe.learning_rate(500) == recipe.rate
    assert recipe.learning_rate(recipe.total) == 0
    assert recipe.segments(0) == (8, 16) and recipe.segments(5000) == (8, 80)
    assert recipe.history(0) == (5, 8) and recipe.history(5000) == (5, 40)
    with pytest.raises(ValueError, match='as many stages'):
        PlannerRecipe(steps=(1,))
