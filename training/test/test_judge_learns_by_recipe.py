"""A run of the judge depends only on its recipe, and what it saves can be loaded."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from embodied_kv.model.weights import CheckpointError, Weights
from training.judge.chains import MAX_HOPS, SEGMENTS
from training.judge.exam import cells, exam
from training.judge.file import JUDGE, bundled_judge, load_judge
from training.judge.lessons import NOTHING, draw_chain_batch
from training.judge.trainer import JudgeRecipe, JudgeTrainer, train

SHORT = JudgeRecipe(steps=6, segments=96, questions=4, ask=0.5)


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_a_run_is_a_function_of_its_recipe():
    runs = []
    for _ in range(2):
        trainer = JudgeTrainer(JUDGE, SHORT)
        runs.append([trainer.learn() for _ in range(SHORT.steps)])
    assert runs[0] == runs[1]
    assert runs[0][-1]['key'] < runs[0][0]['key']


def test_prompts_grow_and_answers_come_later():
    recipe = JudgeRecipe(steps=100)
    longest = [recipe.longest(step) for step in range(101)]
    assert longest == sorted(longest)
    assert (longest[0], longest[-1]) == (recipe.short, SEGMENTS[1])
    assert not recipe.asks(0) and recipe.asks(99)
    batch = recipe.batch(99)
    assert batch.key.numel() <= recipe.segments


def test_a_sheet_teaches_what_stands_earlier():
    batch = draw_chain_batch(np.random.default_rng(0), 4, 32, 8)
    assert batch.behind.shape == (4, MAX_HOPS, 32)
    for keys, behind in zip(batch.key.tolist(), batch.behind.tolist(), strict=True):
        for hop in behind:
            assert all(k == NOTHING or keys.index(k) < i for i, k in enumerate(hop))
    memory = batch.ids[:, 2:-9:2]  # values
    assert torch.equal(memory[:, 0], batch.ahead[:, 0]), 'the first has nothing before it'
    assert not torch.equal(memory, batch.ahead) and not torch.equal(batch.ahead, batch.end)


def test_what_is_saved_is_what_is_loaded(tmp_path, capsys):
    out = tmp_path / 'judge.safetensors'
    train(out, SHORT, problems=2)
    said = capsys.readouterr().out
    assert 'full prefill' in said and 'full reuse' in said
    model, trainer = load_judge(out), JudgeTrainer(JUDGE, SHORT)
    for _ in range(SHORT.steps):
        trainer.learn()
    for name, p in trainer.shipped().state_dict().items():
        assert torch.equal(p.bfloat16().float(), model.state_dict()[name]), name
    rows = exam(model, 2, 0, sizes=(8,))
    assert len(rows) == len(list(cells((8,)))) and rows[0]['right']['n'] == 2
    assert 'embodied_kv.recipe' in Weights(out).metadata


def test_what_is_no_judge_is_refused(tmp_path):
    path = tmp_path / 'other.safetensors'
    save_file({'a': torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match='does not say the dimensions of a judge'):
        load_judge(path)
    with pytest.raises(ValueError, match='no judge of seed 9 comes with this package'):
        bundled_judge(9)
