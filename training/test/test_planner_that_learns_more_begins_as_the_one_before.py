"""A planner that is initialised from a smaller one first gives the same logits."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner, save_planner
from training.planner.corpus import corpus, planner_tokenizer
from training.planner.exam import GrowingCache
from training.planner.trainer import PlannerRecipe, PlannerTrainer

SMALL = PlannerConfig('small', BackboneConfig(32, 2, 4, 2, 8, 48, 512), max_tokens=1280)
LARGE = replace(SMALL, name='large', backbone=BackboneConfig(32, 3, 4, 2, 8, 48, 640))
RECIPE = PlannerRecipe(middle=1, late=2)


@pytest.fixture
def known(tmp_path):
    planner = random_planner(SMALL, planner_tokenizer(512), seed=1)
    save_planner(tmp_path, planner.model.state_dict(), SMALL, planner.tokenizer)
    return planner


def logits(model, ids):
    ids = torch.tensor([ids])
    with torch.no_grad():
        return model.logits(model(ids, torch.arange(ids.shape[1])[None], GrowingCache()))[0]


def test_words_that_both_know_are_said_as_before(known, tmp_path):
    trainer = PlannerTrainer(LARGE, RECIPE)
    trainer.adopt(tmp_path)
    rows = trainer.tokenizer.backend.get_vocab()
    both = [(row, rows[word]) for word, row in known.tokenizer.backend.get_vocab().items()]
    old, new = (torch.tensor(column) for column in zip(*both, strict=True))
    for text in list(corpus())[:40:8]:
        before = logits(known.model, known.tokenizer.encode(text))
        after = logits(trainer.objective.planner, trainer.tokenizer.encode(text))
        torch.testing.assert_close(after[:, new], before[:, old], rtol=1e-4, atol=1e-4)


def test_the_average_begins_there_too(known, tmp_path):
    trainer = PlannerTrainer(LARGE, RECIPE)
    trainer.adopt(tmp_path)
    for name, p in trainer.objective.planner.named_parameters():
        assert torch.equal(trainer.average[name], p)


def test_a_planner_of_another_width_is_refused(known, tmp_path):
    wide = replace(LARGE, backbone=replace(LARGE.backbone, width=64))
    with pytest.raises(ValueError, match='has other dimensions than large'):
        PlannerTrainer(wide, RECIPE).adopt(tmp_path)
