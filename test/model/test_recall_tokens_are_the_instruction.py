"""Recall tokens are the first tokens of the cleaned instruction; an empty one has none."""

import pytest

from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.processing.prompt import RECALL_TOKENS, recall_ids


@pytest.fixture(scope='module')
def tokenizer():
    return open_checkpoint(bundled('tabletop')).tokenizer()


def test_they_are_its_words(tokenizer):
    ids = recall_ids(tokenizer, 'put_the red cube\nback where it was ')
    assert tokenizer.decode(ids) == ' put the red cube back where it was'


@pytest.mark.parametrize('instruction', ['', '  ', '\n', '_'])
def test_without_words_there_are_none(tokenizer, instruction):
    assert recall_ids(tokenizer, instruction) == []


@pytest.mark.parametrize('words', [20, 10**5])
def test_a_long_instruction_is_cut(tokenizer, words):
    ids = recall_ids(tokenizer, 'cube ' * words)
    assert ids == recall_ids(tokenizer, 'cube ' * 20) and len(ids) == RECALL_TOKENS
