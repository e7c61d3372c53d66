"""All instructions, questions and answers of the tabletop consist of one token per word."""

import numpy as np
import pytest

from embodied_kv.config import TABLETOP
from embodied_kv.demo.sim import language
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import FAMILIES, PHRASES, draw_task, task_scene
from training.common.words import corpus, train_tokenizer


@pytest.fixture(scope='module')
def tokenizer():
    return train_tokenizer(TABLETOP.backbone.vocab_size)


@pytest.fixture(scope='module')
def said():
    """Return all phrases and phases of twenty crowded scenes, and questions with answers."""
    found = set()
    with Tabletop(task_scene('put', crowded=True), 0) as table:
        for seed in range(20):
            table.reset(seed)
            truth, rng = table.truth(), np.random.default_rng(seed)
            pairs = [ask(truth, rng) for ask in language.SCENE_QUESTIONS.values()]
            found |= {text for pair in pairs if pair for text in pair}
            for family in FAMILIES:
                if task := draw_task(truth.things, rng, family):
                    found |= {task.phrase(i) for i in range(2 * len(PHRASES[family]))}
                    for phase in Phase:
                        found.add(language.narrate(phase, task, truth))
                        found.add(language.say_subtask(phase, task, truth))
    return sorted(found)


def test_no_word_is_spelt(tokenizer, said):
    assert len(said) > 500
    for text in said:
        text = ' '.join(text.split())  # a phase that its family lacks names no place
        words = text.replace('?', ' ?').replace(',', ' ,').split()
        text = text if text.endswith('?') else f' {text}'  # a question has no leading space
        assert len(tokenizer.encode(text)) <= len(words), text


def test_the_same_corpus_makes_the_same_tokenizer(tokenizer):
    again = train_tokenizer(TABLETOP.backbone.vocab_size)
    assert all(again.encode(text) == tokenizer.encode(text) for text in corpus())
