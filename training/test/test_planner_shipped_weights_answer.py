"""The bundled planner answers questions after a plain prefill of the whole memory."""

import pytest
import torch

from embodied_kv.model.planner import PLANNER_MISSIONS
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from training.planner.corpus import planner_tokenizer, whole_corpus
from training.planner.exam import Reader, examine


@pytest.fixture(scope='module')
def planner():
    torch.set_num_threads(1)
    return load_planner(bundled_planner('planner_missions'), PLANNER_MISSIONS)


def test_shipped_weights_answer_questions_on_unseen_households(planner):
    found = list(examine(planner, households=16, questions=2, segments=(10, 80), seed=7))
    wrong = [one for one in found if not one.exact]
    assert len(found) == 192
    assert len(wrong) <= 0.05 * len(found), wrong


def test_shipped_words_are_the_words_of_households_and_missions(planner):
    words = planner_tokenizer(640, whole_corpus())
    assert planner.tokenizer.backend.to_str() == words.backend.to_str()


def test_shipped_weights_read_the_memory_and_not_the_question_alone(planner):
    texts = ['blue bin: open, on the left table', 'robot: holds nothing']
    question = 'Which table is the red cube on?'
    for place, table in (('in the blue bin', 'left'), ('on the corner table', 'corner')):
        assert (
            Reader(planner, [*texts, f'red cube: {place}']).ask(question) == f'the {table} table'
        )
