"""The bundled planner plans unseen missions, and refuses unknown words."""

import pytest
import torch

from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from training.planner.exam import Reader
from training.planner.mission_exam import ask_unknown_words, plan_missions, report

RECORDS = (5, 20)


@pytest.fixture(scope='module')
def ask():
    torch.set_num_threads(1)
    planner = load_planner(bundled_planner('planner_missions'))
    return lambda texts, question: Reader(planner, texts).ask(question)


def test_shipped_weights_plan_missions_step_by_step(ask):
    _, cells = report(list(plan_missions(ask, 21, RECORDS, seed=11)))
    assert cells['all answers'] >= 80 and cells['all missions'] >= 45, cells


def test_shipped_weights_refuse_words_that_nobody_knows(ask):
    _, cells = report([], list(ask_unknown_words(ask, 14, RECORDS, seed=11)))
    assert cells['unknown words'] >= 70, cells
