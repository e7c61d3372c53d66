"""Chains: distinct keys, one way ahead and one back, layouts that lie as named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.train.chains import (
    BOS,
    HOPS,
    LAYOUTS,
    MAX_HOPS,
    SEGMENTS,
    SYMBOLS,
    VOCABULARY,
    draw_chains,
    walk,
)

drawn = settings(max_examples=60, deadline=None)(
    given(
        seed=st.integers(0, 2**32),
        segments=st.integers(*SEGMENTS),
        hops=st.integers(0, MAX_HOPS),
        layout=st.sampled_from([None, *LAYOUTS]),
    )
)


@drawn
def test_links_are_where_a_value_is_a_key(seed, segments, hops, layout):
    chains = draw_chains(np.random.default_rng(seed), 3, segments, hops, layout)
    same = chains.values[:, :, None] == chains.keys[:, None, :]  # [B, S, S]
    assert np.array_equal(np.where(same.any(2), same.argmax(2), -1), chains.ahead)
    assert np.array_equal(np.where(same.any(1), same.argmax(1), -1), chains.behind)
    for symbols in (*chains.keys, *chains.values):
        assert len(set(symbols)) == segments


@drawn
def test_the_asked_chain_goes_on_and_lies_as_its_layout(seed, segments, hops, layout):
    chains = draw_chains(np.random.default_rng(seed), 3, segments, hops, layout)
    places = walk(chains.ahead, hops)[np.arange(3), :, chains.start]  # [B, 1 + hops]
    assert (places >= 0).all()
    if layout == 'forward':
        assert (np.diff(places) > 0).all()
    if layout == 'backward':
        assert (np.diff(places) < 0).all()


@drawn
def test_an_answer_is_found_by_reading_the_prompt_alone(seed, segments, hops, layout):
    chains = draw_chains(np.random.default_rng(seed), 3, segments, hops, layout)
    start = chains.start[:, None]
    question = chains.question(start, np.array([hops]))
    answers = chains.answer(start, np.array([hops]))
    for tokens, (asked,), (answer,) in zip(chains.tokens, question, answers, strict=True):
        assert tokens[0] == BOS and tokens.max() < VOCABULARY and tokens[1:].max() < SYMBOLS
        book = dict(zip(tokens[1::2], tokens[2::2], strict=True))
        symbol = asked[1]
        for _ in range(asked[0] - HOPS + 1):
            symbol = book[symbol]
        assert symbol == answer


@drawn
def test_random_questions_have_answers(seed, segments, hops, layout):
    rng = np.random.default_rng(seed)
    chains = draw_chains(rng, 3, segments, hops, layout)
    start, asked = chains.ask(rng, np.full((3, 5), hops))
    assert np.array_equal(asked, np.full((3, 5), hops)), 'every prompt has a chain that long'
    assert chains.answer(start, asked).shape == (3, 5)


def test_layouts_place_the_answer_before_the_start_or_after_it():
    chains = draw_chains(np.random.default_rng(0), 400, 16, 3, 'mixed')
    steps = np.diff(walk(chains.ahead, 3)[np.arange(400), :, chains.start]) > 0
    patterns = {tuple(pattern) for pattern in steps}
    assert len(patterns) == 8, 'each link of a mixed chain leads either way'


def test_the_draw_is_a_function_of_the_generator():
    a, b, c = (draw_chains(np.random.default_rng(seed), 4, 12, 2) for seed in (1, 1, 2))
    assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.start, b.start)
    assert not np.array_equal(a.tokens, c.tokens)


@pytest.mark.parametrize(
    'segments, hops, layout, message',
    [
        (7, 0, None, '7 segments: a prompt has 8 to 64'),
        (65, 0, None, '65 segments: a prompt has 8 to 64'),
        (8, 4, None, '4 hops: a question asks for 0 to 3'),
        (8, 1, 'sideways', "no layout 'sideways'; there are: forward, backward, mixed"),
    ],
)
def test_what_there_is_not_is_refused(segments, hops, layout, message):
    with pytest.raises(ValueError, match=message):
        draw_chains(np.random.default_rng(0), 2, segments, hops, layout)


def test_a_question_beyond_its_chain_is_refused():
    chains = draw_chains(np.random.default_rng(0), 4, 8)
    ends = (chains.ahead < 0).argmax(1)[:, None]
    with pytest.raises(ValueError, match='a question goes further than its chain'):
        chains.answer(ends, np.array([1]))
