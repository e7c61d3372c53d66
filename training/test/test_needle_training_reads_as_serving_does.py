"""A page in training equals the prefix that the engine computes for it."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from embodied_kv.config import NEEDLE
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.weights import Weights
from training.common.batch import Batch
from training.needle.pages import draw_pages
from training.needle.reading import answer, question
from training.needle.trainer import NeedleRecipe, NeedleTrainer, train

SMALL = replace(
    NEEDLE,
    vision=replace(NEEDLE.vision, image_size=48, width=16, mlp=32),
    backbone=replace(NEEDLE.backbone, width=32, layers=2, head_dim=8, mlp=48),
    expert=replace(NEEDLE.expert, width=16, mlp=16),
)
PATCHES = SMALL.vision.patches
READ = {'images', 'prompt', 'prompt_length'}
RECIPE = NeedleRecipe(shown=(21, PATCHES), pages=(6, 3), steps=(40, 2), rate=1e-2, average=0.5)


@pytest.fixture(scope='module')
def trainer():
    torch.set_num_threads(1)
    return NeedleTrainer(SMALL, RECIPE)


@torch.no_grad()
def test_a_page_shown_whole_is_the_prefix_that_policies_are_trained_on(trainer):
    batch = trainer.batch(RECIPE.total)
    assert batch.shown.shape == (3, PATCHES)
    shared = {name: getattr(batch, name) for name in ('packed', 'segment', 'offset', 'answer')}
    lengths = torch.full((3,), batch.prompt.shape[1])
    rng = np.random.default_rng((RECIPE.seed, RECIPE.total))
    pages = draw_pages(rng, 3, 6, PATCHES)
    whole = Batch(
        images=torch.from_numpy(pages.images())[:, None],
        prompt=batch.prompt,
        prompt_length=lengths,
        **shared,
        **dict.fromkeys({field.name for field in fields(Batch)} - READ - shared.keys()),
    )
    _, expected, _ = trainer.reader.objective.fill(whole)
    _, filled = trainer.reader.fill(batch)
    assert torch.equal(filled.lengths, expected.lengths)
    for layer, pair in expected.layers.items():
        for one, other in zip(filled.layers[layer], pair, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('step', [0, RECIPE.total])
def test_questions_begin_where_a_whole_page_and_its_prompt_end(trainer, step):
    batch = trainer.batch(step)
    text = batch.prompt.shape[1]
    first = (batch.shown.shape[1] + text) + batch.offset[batch.segment >= 0].min()
    assert first == PATCHES + text


def test_each_code_is_asked_and_answered_by_its_digits(trainer):
    batch, words = trainer.batch(RECIPE.total), trainer.tokenizer
    for segment in range(len(COLOURS)):
        own = batch.segment[0] == segment
        said = words.decode(batch.packed[0, own].tolist())
        targets = batch.answer[0, own]
        wanted = targets[targets >= 0].tolist()
        assert wanted[-1] == words.eos
        asked, code = said.split('?')
        assert asked.removeprefix('What is ') in COLOURS
        assert code == words.decode(wanted) and len(code.split()) == 3
    assert words.encode(question('red')) == words.encode('What is red?')
    assert len(words.encode(' ' + answer(np.array([4, 7, 2])))) == 3


def test_a_run_learns_and_leaves_a_policy(tmp_path, capsys):
    train(tmp_path, RECIPE, minutes=5, config=SMALL)
    assert 'step 42: text' in capsys.readouterr().out
    rows = [line.split(',') for line in (tmp_path / 'log.csv').read_text().splitlines()[1:]]
    losses = [float(value) for _, of, name, value in rows if (of, name) == ('unseen', 'text')]
    assert 0 < losses[-1] < 6.3  # chance over the vocabulary is 6.64
    policy = open_checkpoint(tmp_path / 'policy', config=SMALL).load()
    again = NeedleTrainer(SMALL, RECIPE)
    for step in range(RECIPE.total):
        again.learn(again.batch(step))
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, again.average[name].bfloat16().float()), name
    assert 'compression' in Weights(tmp_path / 'policy').metadata['embodied_kv.use']


def test_stages_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match='must say as many stages'):
        NeedleRecipe(steps=(1, 2))


def test_the_rate_warms_up_and_ends_low():
    recipe = NeedleRecipe(steps=(100, 200, 700))
    assert recipe.learning_rate(0) < 0.02 * recipe.rate
    assert recipe.learning_rate(100) == pytest.approx(recipe.rate, rel=0.03)
    assert recipe.learning_rate(1000) == pytest.approx(0.02 * recipe.rate)
    assert [recipe.stage(step) for step in (0, 99, 100, 299, 300, 5000)] == [0, 0, 1, 1, 2, 2]
