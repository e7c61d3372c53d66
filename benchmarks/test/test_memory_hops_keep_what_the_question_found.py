"""Propagation of scores over hops, with the share of the first scores that each hop keeps.

The share is 0 as in the paper, or `restart`.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory.reuse_variants import PROPAGATIONS, walk
from embodied_kv.memory.importance import share


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


def relevant(between, propagation, ratio=0.5, restart=0.0):
    return walk(asks(5), between, ratio, None, 8, restart, propagation).relevant


def test_directed_hops_lose_the_chain_and_others_keep_it():
    """The query attends to the door (5), 5 to the key (3), 3 to the table (1), and none back."""
    between = chain(5, 3, 1)
    assert relevant(between, 'directed') != (1, 3, 5)
    assert relevant(between, 'directed', restart=0.2) == (1, 3, 5)
    assert relevant(between, 'accumulated') == (1, 3, 5)


def test_a_hop_along_the_diagonal_counts_what_a_segment_attends_to_in_itself():
    between = torch.tensor([[2.0, 0, 0], [1, 3, 0], [0, 1, 1]])
    found = walk(torch.tensor([0.0, 0, 1]), between, 1 / 3, hops=1, propagation='diagonal')
    assert found.scores == pytest.approx((0, 0.5, 0.5)) and found.relevant == (1,)
    directed = walk(torch.tensor([0.0, 0, 1]), between, 1 / 3, hops=1)
    assert directed.scores == pytest.approx((0, 1, 0))


def test_symmetric_hops_reach_a_link_that_stands_later():
    """A causal segment attends only to earlier ones: 5 attends to 3, 3 does not attend to 5."""
    between = chain(5, 3, weak=0.0)
    query = torch.tensor([0.0, 0, 0, 1, 0, 0])
    for name, wanted in (('directed', False), ('diagonal', False), ('accumulated', True)):
        found = walk(query, between, 1 / 3, propagation=name)
        assert (5 in found.relevant) == wanted, name
    assert walk(query, between, 1 / 6, hops=1, propagation='symmetric').relevant == (5,)


def test_an_accumulated_score_is_the_mean_over_hops():
    between = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    found = walk(torch.tensor([1.0, 0.0]), between, 0.5, hops=1, propagation='accumulated')
    assert found.scores == pytest.approx((0.5, 0.5)) and found.relevant == (0,)


def test_rows_that_were_not_computed_are_ignored():
    between = chain(5, 3, 1)
    between[2] = float('nan')
    for name in PROPAGATIONS:
        found = walk(asks(5), between, 0.5, [0, 1, 3, 4, 5], propagation=name)
        assert 2 not in found.relevant and found.scores[2] == 0, name


def test_an_unknown_propagation_is_refused():
    with pytest.raises(ValueError, match='propagation must be one of directed, diagonal'):
        walk(torch.ones(2), torch.ones(2, 2), 0.5, propagation='magic')


@given(st.data(), st.sampled_from(list(PROPAGATIONS)))
def test_any_propagation_chooses_its_share(data, propagation):
    s, numbers = data.draw(st.integers(1, 8)), st.floats(0, 1, width=32)
    query = torch.tensor(data.draw(st.lists(numbers, min_size=s, max_size=s)))
    cells = data.draw(st.lists(numbers, min_size=s * s, max_size=s * s))
    candidates = data.draw(st.sets(st.integers(0, s - 1)))
    numbers = data.draw(st.floats(0, 1)), candidates, 8, data.draw(st.floats(0, 1)), propagation
    found = walk(query, torch.tensor(cells).view(s, s), *numbers)
    assert set(found.relevant) <= candidates
    assert len(found.relevant) == min(share(numbers[0], s), len(candidates))
    assert sum(found.scores) == pytest.approx(1) or sum(found.scores) == 0
