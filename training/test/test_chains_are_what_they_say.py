"""A prompt of chains agrees with its fields, and its answers can be found by reading it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.judge.chains import (
    BOS,
    END,
    KEYS,
    LAYOUTS,
    MAX_HOPS,
    POINTER,
    at,
    draw_chains,
    earlier,
    furthest,
    walk,
)

drawn = settings(deadline=None, max_examples=40)(
    given(
        seed=st.integers(0, 10**6),
        segments=st.integers(8, 64),
        hops=st.none() | st.integers(0, MAX_HOPS),
        layout=st.none() | st.sampled_from(LAYOUTS),
    )
)


def draw(seed, *rest):
    return draw_chains(np.random.default_rng(seed), 3, *rest)


@drawn
def test_links_follow_the_tokens(seed, segments, hops, layout):
    chains = draw(seed, segments, hops, layout)
    rows = zip(chains.keys, chains.values, chains.ahead, chains.behind, strict=True)
    for keys, values, ahead, behind in rows:
        assert sorted({*keys}) == sorted(keys) and keys.max() < KEYS, 'keys are distinct'
        pointers = values[values < END]
        assert len({*pointers}) == len(pointers), 'no key is pointed to twice'
        position = {key: i for i, key in enumerate(keys)}
        assert [position.get(value - POINTER, -1) for value in values] == [*ahead]
        assert all(ahead[i] == j for j, i in enumerate(behind) if i >= 0)
        assert (behind >= 0).sum() == (ahead >= 0).sum() == len(pointers)


@drawn
def test_a_chain_lies_one_way_and_is_not_too_long(seed, segments, hops, layout):
    chains = draw(seed, segments, hops, layout)
    steps = np.where(chains.ahead < 0, 0, np.sign(chains.ahead - np.arange(segments)))
    further = at(steps, chains.ahead, 0)
    assert not (steps * further < 0).any(), 'no chain turns round'
    assert (walk(chains.ahead, MAX_HOPS + 1)[:, -1] < 0).all()
    first = at(steps, chains.start[:, None])[:, 0]
    if hops is not None:
        assert (at(chains.hops, chains.start[:, None]) == hops).all()
    if hops and layout:
        assert (first == {'forward': 1, 'backward': -1}[layout]).all()


@drawn
def test_an_answer_is_found_by_reading_the_prompt_alone(seed, segments, hops, layout):
    chains = draw(seed, segments, hops, layout)
    for tokens, keys, answers, hop in zip(
        chains.memory, chains.keys, chains.answers, chains.hops, strict=True
    ):
        assert tokens[0] == BOS and len(tokens) == 1 + 2 * segments
        book = dict(zip(tokens[1::2], tokens[2::2], strict=True))
        for key, answer, links in zip(keys, answers, hop, strict=True):
            value = book[key]
            for _ in range(links):
                value = book[value - POINTER]
            assert END <= value < BOS and value == answer


@drawn
def test_a_causal_reader_follows_links_to_earlier_segments(seed, segments, hops, layout):
    chains = draw(seed, segments, hops, layout)
    seen = earlier(chains.ahead)
    assert ((seen == chains.ahead) | (seen < 0)).all() and (seen < np.arange(segments)).all()
    backward = (chains.ahead < np.arange(segments)) & (chains.ahead >= 0)
    assert np.array_equal(seen >= 0, backward)
    ends = furthest(seen, MAX_HOPS)
    assert (ends <= np.arange(segments)).all() and (at(seen, ends) < 0).all()


def test_the_draw_is_a_function_of_the_generator():
    a, b, c = (draw(seed, 12, 2) for seed in (1, 1, 2))
    assert np.array_equal(a.memory, b.memory) and np.array_equal(a.start, b.start)
    assert not np.array_equal(a.memory, c.memory)


@pytest.mark.parametrize(
    'segments, hops, layout, message',
    [
        (7, 0, None, '7 segments: a prompt has 8 to 64'),
        (65, 0, None, '65 segments: a prompt has 8 to 64'),
        (8, 4, None, '4 hops: a chain has 0 to 3'),
        (8, 1, 'sideways', "no layout 'sideways'; there are: forward, backward"),
    ],
)
def test_what_there_is_not_is_refused(segments, hops, layout, message):
    with pytest.raises(ValueError, match=message):
        draw(0, segments, hops, layout)
