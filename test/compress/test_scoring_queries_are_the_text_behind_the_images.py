"""The queries that score a prefix: those of its text, of a question, all, a window, or none."""

import pytest

from embodied_kv.compress.base import scoring_queries


def test_the_text_behind_the_images_scores():
    assert scoring_queries('post_vision', prefix=100, text=20) == range(80, 100)


def test_a_question_scores_instead_where_there_is_one():
    assert scoring_queries('post_vision', 100, text=20, question=7) == range(100, 107)
    assert scoring_queries('post_vision', 100, text=0, question=7) == range(100, 107)


def test_all_of_a_long_text_scores():
    assert scoring_queries('post_vision', 968, text=200) == range(768, 968)
    assert scoring_queries('post_vision', 200, text=80, question=160) == range(200, 360)


def test_a_prompt_without_images_is_all_text():
    assert scoring_queries('post_vision', 30, text=30) == range(30)


def test_a_prompt_without_text_is_refused():
    with pytest.raises(ValueError, match='must have text behind its images.*append a question'):
        scoring_queries('post_vision', 100, text=0)


def test_other_methods_ask_all_or_the_last_or_none():
    assert scoring_queries('all', 100, text=0, question=5) == range(105)
    assert scoring_queries('window', 100, text=0, window=32) == range(68, 100)
    assert scoring_queries('window', 20, text=0, question=5, window=32) == range(25)
    assert scoring_queries(None, 100, text=0) == range(0)


def test_other_wishes_are_refused():
    with pytest.raises(ValueError, match="must be 'post_vision', 'all'.* .got 'some'."):
        scoring_queries('some', 100, text=20)
