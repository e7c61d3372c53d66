"""Importance propagates over hops of attention, and the exact share of segments is chosen."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.memory.importance import RESTART, importance, share


def chain(*indices, s=6, weak=0.01):
    """Return attention from each segment to the next one, and a little between all segments."""
    between = torch.full((s, s), weak)
    for here, there in itertools.pairwise(indices):
        between[here, there] = 1.0
    return between


def asks(index, s=6, weak=0.01):
    query = torch.full((s,), weak)
    query[index] = 1.0
    return query


def test_door_key_table():
    """Figure 6: the query attends to the door, the door to the key, and the key to the table."""
    between = chain(5, 3, 1)
    found = importance(asks(5), between, 0.5, restart=0.2)
    assert found.relevant == (1, 3, 5) and found.stable and found.hops > 1
    alone = importance(asks(5), between, 0.5, hops=0)
    assert alone.relevant == (0, 1, 5) and alone.hops == 0, 'by the query alone, ties to the first'


def test_a_hop_replaces_the_scores_by_the_mean_of_the_relevant_rows():
    between = torch.tensor([[9.0, 1, 3], [4, 9, 4], [2, 6, 9]])
    found = importance(torch.tensor([0.2, 0.5, 0.3]), between, 2 / 3, hops=1, restart=0)
    wanted = torch.tensor([4.0 + 2, 6, 4]) / 16  # rows 1 and 2, without themselves
    assert found.scores == pytest.approx(wanted.tolist()) and found.relevant == (0, 1)
    mixed = importance(torch.tensor([0.2, 0.5, 0.3]), between, 2 / 3, hops=1)
    first = torch.tensor([0.2, 0.5, 0.3])
    assert mixed.scores == pytest.approx(((1 - RESTART) * wanted + RESTART * first).tolist())


def test_attention_of_a_segment_to_itself_is_ignored():
    between = chain(5, 3, 1)
    selfish = between + torch.diag(torch.full((6,), 100.0))
    assert importance(asks(5), between, 0.5) == importance(asks(5), selfish, 0.5)


def test_ties_go_to_the_lower_place():
    flat = torch.ones(4, 4)
    assert importance(torch.ones(4), flat, 0.5).relevant == (0, 1)
    assert importance(torch.ones(4), flat, 0.5, candidates=[3, 1, 2]).relevant == (1, 2)


def test_a_dropped_segment_is_never_kept_and_propagates_nothing():
    between = chain(5, 3, 1)
    found = importance(asks(5), between, 0.5, candidates=[0, 1, 4, 5])
    assert 3 not in found.relevant and found.scores[3] == 0
    between[3] = float('nan')  # that row was not computed
    again = importance(asks(5), between, 0.5, candidates=[0, 1, 4, 5])
    assert again == found


def test_two_that_alternate_end_after_so_many_hops():
    between = chain(0, 1, 0, s=2, weak=0.0)
    found = importance(torch.tensor([1.0, 0.0]), between, 0.5, hops=7, restart=0)
    assert not found.stable and found.hops == 7 and found.relevant == (1,)
    assert importance(torch.tensor([1.0, 0.0]), between, 0.5, hops=8, restart=0).relevant == (0,)


def test_where_nothing_is_attended_to_the_query_decides():
    found = importance(asks(2), torch.zeros(6, 6), 0.3)
    assert found.relevant[0] == 0 and 2 in found.relevant and found.stable
    assert importance(torch.zeros(3), torch.zeros(3, 3), 0.6).relevant == (0, 1)
    assert importance(torch.zeros(0), torch.zeros(0, 0), 0.5).relevant == ()


@pytest.mark.parametrize(
    ('ratio', 'segments', 'count'),
    [(0.1, 30, 3), (0.16, 10, 2), (0.14, 10, 1), (1, 7, 7), (0, 7, 0), (0.3, 5, 2)],
)
def test_a_share_is_rounded_as_written(ratio, segments, count):
    assert share(ratio, segments) == count


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((torch.ones(3), torch.ones(3, 2), 0.5), r'must be \[s\]'),
        ((torch.ones(2), torch.ones(2, 2), 1.5), r'in \[0, 1\]'),
        ((torch.ones(2), torch.ones(2, 2), 0.5, [2]), r'candidates must be indices below 2'),
        ((torch.tensor([1.0, float('nan')]), torch.ones(2, 2), 0.5), 'must be finite'),
        ((torch.tensor([1.0, -1.0]), torch.ones(2, 2), 0.5), 'must be finite and >= 0'),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        importance(*arguments)


@given(st.data())
def test_any_attention_gives_scores_within_the_laws(data):
    s = data.draw(st.integers(1, 8))
    numbers = st.floats(0, 1, width=32)
    query = torch.tensor(data.draw(st.lists(numbers, min_size=s, max_size=s)))
    cells = data.draw(st.lists(numbers, min_size=s * s, max_size=s * s))
    between, ratio = torch.tensor(cells).view(s, s), data.draw(st.floats(0, 1))
    candidates = data.draw(st.sets(st.integers(0, s - 1)))
    found = importance(query, between, ratio, candidates, restart=data.draw(st.floats(0, 1)))
    assert set(found.relevant) <= candidates and list(found.relevant) == sorted(found.relevant)
    assert len(found.relevant) == min(share(ratio, s), len(candidates))
    assert sum(found.scores) == pytest.approx(1) or sum(found.scores) == 0
    more = importance(query, between, 1.0, candidates)
    assert set(more.relevant) == candidates
