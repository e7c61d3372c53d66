"""CacheHitRate, Contribution and Coverage equal results by hand, and loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.compress.formulas import (
    cache_hit_rate,
    contribution,
    coverage,
    hit_rate,
    threshold_filter,
)


def test_cache_hit_rate_by_hand():
    truth = torch.tensor([0.4, 0.3, 0.2, 0.1])
    scores = torch.tensor([[4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 3, 2]])
    assert cache_hit_rate(scores, truth.expand(3, 4), 2).tolist() == [1.0, 0.0, 0.5]
    assert cache_hit_rate(scores, truth.expand(3, 4), 4).tolist() == [1.0, 1.0, 1.0]


def test_hit_rate_of_a_selection_counts_its_window_too():
    truth = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert hit_rate(torch.tensor([[0, 3]]), truth).tolist() == [0.5]


def test_ties_of_scores_go_to_the_lower_position():
    assert cache_hit_rate(torch.zeros(5), torch.tensor([5, 4, 3, 2, 1.0]), 2) == 1


def test_threshold_filter_keeps_what_reaches_the_bar():
    row = torch.tensor([[0.5, 0.25, 0.2, 0.05]])
    assert threshold_filter(row, 0.5).tolist() == [[0.5, 0.25, 0, 0]]


def test_contribution_by_hand():
    rows = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.1, 0.1, 0.3, 0.5]])
    vision = torch.tensor([True, True, False, False])
    prompt = torch.tensor([True, True, True, False])
    # with p = 0.3 the first row keeps 0.6 and 0.3, the second 0.3 and 0.5 (decoded)
    assert contribution(rows, vision, prompt, p=0.3).item() == pytest.approx((1 + 0) / 2)
    # with p = 0.1 everything stays
    wanted = (0.9 / 1.0 + 0.2 / 0.5) / 2
    assert contribution(rows, vision, prompt, p=0.1).item() == pytest.approx(wanted)


def test_a_row_that_leaves_nothing_of_the_prompt_counts_as_0():
    rows = torch.tensor([[0.001, 0.001, 0.998]])
    prompt = torch.tensor([True, True, False])
    assert contribution(rows, prompt, prompt, p=0.01).item() == 0


def test_coverage_by_hand():
    rows = torch.tensor([[0.4, 0.1, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4]])
    vision = torch.tensor([True, True, False, False])
    assert coverage(rows, vision, keep_ratio=0.5).item() == pytest.approx((1 / 2 + 0) / 2)


def test_a_top_of_nothing_is_refused():
    with pytest.raises(ValueError, match='keep ratio 0.1 of 9 positions is 0'):
        coverage(torch.rand(2, 9), torch.ones(9, dtype=torch.bool), keep_ratio=0.1)
    with pytest.raises(ValueError, match='the best 0 of 4 positions'):
        cache_hit_rate(torch.rand(4), torch.rand(4), 0)


@settings(deadline=None)
@given(
    rows=st.integers(1, 5),
    count=st.integers(10, 40),
    p=st.floats(0.0001, 0.5),
    keep_ratio=st.floats(0.1, 1),
    seed=st.integers(0, 999),
)
def test_contribution_and_coverage_equal_loops(rows, count, p, keep_ratio, seed):
    g = torch.Generator().manual_seed(seed)
    attention = (3 * torch.randn(2, rows, count, generator=g)).double().softmax(-1)
    chosen, prompt = torch.rand(2, count, generator=g) < torch.tensor([[0.4], [0.8]])
    by_mass, by_count = [0.0, 0.0], [0.0, 0.0]
    k = math.floor(keep_ratio * count + 1e-9)
    for head in range(2):
        for row in attention[head].tolist():
            best, bar = sorted(row)[-k:], p * max(row)
            for sums, entries in (
                (by_mass, [a if a >= bar else 0 for a in row]),
                (by_count, [a in best for a in row]),
            ):
                part = sum(e for e, c, w in zip(entries, chosen, prompt, strict=True) if c and w)
                whole = sum(e for e, w in zip(entries, prompt, strict=True) if w)
                sums[head] += part / whole / rows if whole else 0
    found = (
        contribution(attention, chosen, prompt, p),
        coverage(attention, chosen, prompt, keep_ratio),
    )
    for value, wanted in zip(found, (by_mass, by_count), strict=True):
        torch.testing.assert_close(value, torch.tensor(wanted, dtype=torch.float64))
