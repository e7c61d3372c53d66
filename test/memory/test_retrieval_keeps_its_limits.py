"""Retrieval returns the segments nearest to a question: whole groups, within limits, in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meanings import WIDTH, advance, filled, towards

from embodied_kv.memory.groups import retrieve


def in_view(groups, query, tokens=1000, segments=None):
    return [found.ids for found in retrieve(groups, query, tokens, segments)]


def test_a_static_group_comes_whole_and_a_dynamic_one_by_segment():
    groups = filled('a1', 'b1', 'a2', 'b2')
    advance(groups, 10)
    groups.put('b2', towards('b', 0.3), 10, 10)
    assert in_view(groups, towards('a'), segments=1) == [('a1', 'a2')]
    assert in_view(groups, towards('b'), segments=1) == [('b1',)]
    assert in_view(groups, towards('b', 0.3), segments=1) == [('b2',)]


def test_a_group_is_as_near_as_its_nearest_member():
    groups = filled('a1', 'b1')
    groups.put('a2', towards('a', 0.7), 10, 0)
    advance(groups, 10)
    first, second = retrieve(groups, towards('a', 0.7), 1000)
    assert first.ids == ('a1', 'a2') and first.score == pytest.approx(1.0)
    assert first.tokens == 20 and first.static and second.ids == ('b1',)


def test_the_order_does_not_depend_on_the_question():
    groups = filled('a1', 'b1', 'c1', 'd1')
    advance(groups, 10)
    for id in ('d1', 'b1'):
        groups.put(id, towards(id[0]), 10, 10)
    assert all(
        in_view(groups, towards(letter)) == [('a1',), ('c1',), ('b1',), ('d1',)]
        for letter in 'abcd'
    )


def test_unit_that_does_not_fit_is_skipped():
    groups = filled('a1', tokens=50)
    groups.put('b1', towards('b'), 10, 0)
    query = (2 * towards('a') + towards('b')) / 5**0.5
    assert in_view(groups, query, tokens=49) == [('b1',)]
    assert in_view(groups, query, tokens=60) == [('a1',), ('b1',)]
    assert in_view(groups, query, tokens=0) == []


def test_ties_go_to_what_came_first():
    groups = filled('a3', 'a1', 'a2', max_members=1)
    assert in_view(groups, towards('a'), segments=2) == [('a3',), ('a1',)]
    groups.remove('a3', 0)
    groups.put('a3', towards('a'), 10, 0)
    assert in_view(groups, towards('a'), segments=2) == [('a1',), ('a2',)]


def test_a_removed_segment_is_not_found():
    groups = filled(*(f'a{i}' for i in range(40)), max_members=1)
    for i in range(30):
        groups.remove(f'a{i}', 0)
        assert in_view(groups, towards('a')) == [(f'a{j}',) for j in range(i + 1, 40)]


def test_bad_input_is_refused():
    groups = filled('a1')
    with pytest.raises(ValueError, match='query must have 8 numbers'):
        retrieve(groups, towards('a')[:3], 10)
    with pytest.raises(ValueError, match='tokens and segments must be >= 0'):
        retrieve(groups, towards('a'), -1)
    assert retrieve(filled(), towards('a'), 10) == ()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from('abcdefgh'), st.integers(0, 30)), max_size=30),
    st.integers(0, 12),
    st.integers(0, 200),
    st.integers(0, 20),
    st.integers(0, 2**31),
)
def test_any_memory_is_retrieved_within_its_limits(segments, steps, tokens, wanted, seed):
    groups = filled()
    for i, (letter, size) in enumerate(segments):
        groups.put(f'{letter}{i}', towards(letter), size, groups.step)
        groups.advance(groups.step + steps % 3)
    query = np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)
    found = retrieve(groups, query, tokens, wanted)
    assert found == retrieve(groups, query, tokens, wanted)
    ids = [id for unit in found for id in unit.ids]
    assert len(ids) == len(set(ids)) and {unit.ids for unit in found} <= set(groups.units())
    assert sum(unit.tokens for unit in found) <= tokens
    order = groups.units()
    assert [unit.ids for unit in found] == [ids for ids in order if ids in {f.ids for f in found}]
    if found and wanted:
        last = min(found, key=lambda unit: unit.score)
        assert len(ids) - len(last.ids) < wanted, 'it went on after enough was in view'
