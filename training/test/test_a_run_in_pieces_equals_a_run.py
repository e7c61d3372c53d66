"""Interrupted training continues as if it had not stopped; its policy loads and acts."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.config import TABLETOP
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.weights import Weights
from embodied_kv.types import Observation
from training.common.words import train_tokenizer
from training.policy import __main__ as command
from training.policy.dataset import Frames, Sampler, measure
from training.policy.episodes import find_episodes
from training.policy.generate import make_episode
from training.policy.recipe import PolicyRecipe
from training.policy.trainer import Trainer

RECIPE = PolicyRecipe(ground_steps=2, joint_steps=3, batch=4, draws=2)
SMALL = replace(
    TABLETOP,
    vision=replace(TABLETOP.vision, layers=1, width=32, heads=2, mlp=64),
    backbone=replace(TABLETOP.backbone, layers=2, width=48, mlp=64, heads=2, head_dim=16),
    expert=replace(TABLETOP.expert, width=32, mlp=48),
)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    for index in range(3):
        make_episode(index, root, 90, 8)
    return root


@pytest.fixture(scope='module')
def batches(data):
    frames = Frames.read(find_episodes(data))
    tokenizer = train_tokenizer(SMALL.backbone.vocab_size)
    sampler = Sampler(
        frames, SMALL, tokenizer, measure(frames, SMALL, 0, 64), batch=RECIPE.batch, seed=0
    )
    return [sampler.batch(step, RECIPE.grounds(step)) for step in range(RECIPE.steps)]


def trainer(**changes) -> Trainer:
    return Trainer(SMALL, replace(RECIPE, **changes), 7, 5)


@pytest.mark.parametrize('cut', [1, 2, 4])
def test_a_run_in_pieces_equals_a_run(batches, tmp_path, cut):
    whole, first = trainer(), trainer()
    for batch in batches:
        whole.learn(batch)
    for batch in batches[:cut]:
        first.learn(batch)
    first.store(tmp_path / 'state.safetensors')
    second = trainer()
    second.restore(tmp_path / 'state.safetensors')
    assert second.step == cut
    for batch in batches[cut:]:
        second.learn(batch)
    for name, value in whole.average.items():
        assert torch.equal(value, second.average[name]), name
    for a, b in zip(whole.objective.parameters(), second.objective.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_recipe_is_refused_by_the_option_that_differs(batches, tmp_path):
    first = trainer()
    first.learn(batches[0])
    first.store(tmp_path / 'state')
    with pytest.raises(ValueError, match='another recipe: rate'):
        trainer(rate=1e-4).restore(tmp_path / 'state')


def test_a_truncated_state_is_refused(batches, tmp_path):
    first = trainer()
    first.learn(batches[0])
    first.store(tmp_path / 'state')
    whole = (tmp_path / 'state').read_bytes()
    (tmp_path / 'state').write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match='is not the state of such a run'):
        trainer().restore(tmp_path / 'state')


def test_validation_changes_nothing(batches):
    one = trainer()
    one.learn(batches[0])
    before = [p.detach().clone() for p in one.objective.parameters()]
    values = one.validate(batches[:2])
    assert values['detect'] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, one.objective.parameters(), strict=True))


def test_the_rate_warms_up_and_ends_low():
    recipe = PolicyRecipe(ground_steps=300, joint_steps=1000)
    assert recipe.learning_rate(0) < 1e-5
    assert recipe.learning_rate(299) == pytest.approx(1e-3)
    assert recipe.learning_rate(1299) == pytest.approx(2e-5, rel=0.05)
    assert 'flow' not in recipe.weights(299) and recipe.weights(300)['flow'] == 1


def acted(policy):
    """Return a chunk of the engine with this policy."""
    engine = Engine(policy, EngineConfig(time_budget=False))
    image = np.zeros((64, 64, 3), np.uint8)
    seen = Observation(
        (image, image), np.zeros(7, np.float32), 'reach the red cube', 0, time.monotonic() + 9, 0
    )
    with engine.kv.frames.leases(engine.prefill([seen])) as leases:
        (chunk,) = engine.denoise(leases, [seen.deadline])
    return chunk.values


def test_the_command_leaves_a_policy_that_acts(data, tmp_path, monkeypatch, capsys):
    words = '--threads 1 --device cpu --batch 2 --draws 1 --ground-steps 1 --joint-steps 1 --rtc 3'
    out = ['--data', str(data), '--out', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', ['train.policy', *words.split(), *out])
    monkeypatch.setattr(command, 'preset', lambda name: SMALL)
    monkeypatch.setattr(command, 'VALIDATION', 1)
    command.main()
    assert 'policy of step 2' in capsys.readouterr().err
    assert (tmp_path / 'curves.png').stat().st_size > 1000
    assert (tmp_path / 'log.csv').read_text().startswith('step,of,name,value')
    made = open_checkpoint(tmp_path / 'policy', config=SMALL)
    assert made.max_action_prefix == 3
    chunk = acted(made.load())
    assert chunk.shape == (10, 7) and np.isfinite(chunk).all()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_train_save_load_act(data, tmp_path):
    """Smoke test: run the command twice, then the engine with its output."""
    words = [
        *(sys.executable, '-m', 'training.policy', '--data', str(data)),
        *('--out', str(tmp_path), '--threads', '1', '--device', 'cpu', '--batch', '4'),
        *('--ground-steps', '2', '--joint-steps', '2'),
    ]
    for minutes in ('0', '5'):
        run = subprocess.run([*words, '--minutes', minutes], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert 'from step 1 of 4' in run.stderr and 'policy of step 4' in run.stderr
    assert (tmp_path / 'curves.png').stat().st_size > 1000
    assert (tmp_path / 'log.csv').read_text().startswith('step,of,name,value')

    # a second run may start from the first one's policy: no step, the same weights
    more = [*words, '--init', str(tmp_path / 'policy'), '--out', str(tmp_path / 'more')]
    run = subprocess.run([*more, '--minutes', '0', '--rate', '0'], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

    policy = open_checkpoint(tmp_path / 'policy', config=TABLETOP).load()
    again = open_checkpoint(tmp_path / 'more' / 'policy', config=TABLETOP).load()
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    card = Weights(tmp_path / 'more' / 'policy').metadata['embodied_kv.trained']
    assert card == '4 steps of 4 samples, EMA weights, then 1 steps of 4 samples, EMA weights'
    assert (tmp_path / 'policy' / 'model.safetensors').stat().st_size < 20e6
    chunk = acted(policy)
    assert chunk.shape == (10, 7) and np.isfinite(chunk).all()
    stats = json.loads((tmp_path / 'policy' / 'norm_stats.json').read_text())
    assert stats['delta'] == [True] * 6 + [False]
