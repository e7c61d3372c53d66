"""Layer budgets of Algorithm 1: exact sum, bounds, monotone, equivariant, deterministic."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from embodied_kv.compress.budget import (
    apportion,
    floor_budget,
    layer_budgets,
    total_budget,
    water_fill,
)

DENSITIES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30)
KEEP_RATIO = st.floats(0.01, 1)
TOKENS = st.integers(1, 3000)


@settings(deadline=None)
@given(DENSITIES, KEEP_RATIO, TOKENS)
def test_the_sum_is_the_total_and_every_layer_is_within_its_bounds(density, keep_ratio, n):
    budgets = layer_budgets(density, keep_ratio, n)
    assert sum(budgets) == total_budget(keep_ratio, len(density), n)
    assert all(floor_budget(n) <= budget <= n for budget in budgets)


@settings(deadline=None)
@given(DENSITIES, KEEP_RATIO, TOKENS)
def test_a_denser_layer_never_keeps_less(density, keep_ratio, n):
    pairs = sorted(zip(density, layer_budgets(density, keep_ratio, n), strict=True))
    for (sparse, few), (dense, many) in zip(pairs, pairs[1:], strict=False):
        assert few <= many or sparse == dense


@settings(deadline=None)
@given(DENSITIES, KEEP_RATIO, TOKENS, st.randoms())
def test_budgets_move_with_their_layers(density, keep_ratio, n, random):
    assume(len(set(density)) == len(density))
    order = random.sample(range(len(density)), len(density))
    budgets = layer_budgets(density, keep_ratio, n)
    moved = layer_budgets([density[i] for i in order], keep_ratio, n)
    # Equal shares (at a bound, or by rounding) are tied, and ties go to the lower layer.
    shares = water_fill(density, sum(budgets), floor_budget(n), n)
    for rank, i in enumerate(order):
        tied = sum((share - shares[i]) % 1 == 0 for share in shares) > 1
        assert abs(moved[rank] - budgets[i]) <= tied


@settings(deadline=None)
@given(DENSITIES, TOKENS)
def test_a_keep_ratio_of_1_keeps_everything_in_every_layer(density, n):
    assert layer_budgets(density, 1, n) == [n] * len(density)


def test_layers_at_no_bound_follow_algorithm_1():
    # beta = density / 2 * 0.1 * 4, of 1000 tokens
    assert layer_budgets([0.2, 0.4, 0.6, 0.8], 0.1, 1000) == [40, 80, 120, 160]


def test_tokens_above_the_ceiling_are_given_to_other_layers_by_density():
    # 2000 of 4000: the first would get 1600, is held at 1000, and the other 1000 go 2 : 1 : 1
    assert layer_budgets([0.8, 0.1, 0.05, 0.05], 0.5, 1000) == [1000, 500, 250, 250]


def test_tokens_below_the_floor_are_taken_from_other_layers_by_density():
    # 150 of 3000: the last would get 1.5, is lifted to 10, and the other 140 go 2 : 1
    assert layer_budgets([0.66, 0.33, 0.01], 0.05, 1000) == [93, 47, 10]


def test_ties_go_to_the_lower_layer():
    assert layer_budgets([0.5, 0.5, 0.5], 0.5, 15) == [8, 7, 7]
    assert layer_budgets([0, 0, 0], 0.5, 15) == [8, 7, 7]


def test_a_layer_of_no_density_waits_until_the_others_are_full():
    assert apportion([0, 1, 1], 12, 1, 10) == [1, 6, 5]
    assert apportion([0, 1, 1], 25, 1, 10) == [5, 10, 10]


def test_the_floor_is_kept_where_the_keep_ratio_allows_less():
    assert total_budget(0.01, 4, 101) == 8
    assert layer_budgets([0.1, 0.2, 0.3, 0.4], 0.01, 101) == [2, 2, 2, 2]


def test_a_prefix_of_less_than_one_token_a_layer_is_kept_whole():
    assert total_budget(0.1, 6, 9) == 6 * 9
    assert total_budget(0.1, 6, 10) == 6
    assert layer_budgets([0.1, 0.2, 0.3], 0.01, 40) == [40, 40, 40]


@pytest.mark.parametrize('keep_ratio', [0, 0.0099, 1.001, -1, float('nan')])
def test_a_keep_ratio_outside_its_range_is_refused(keep_ratio):
    with pytest.raises(ValueError, match=r'must be in \[0.01, 1\].*; 1 keeps everything'):
        total_budget(keep_ratio, 4, 100)


def test_nothing_to_share_is_refused():
    with pytest.raises(ValueError, match='at least 1 .got 4 and 0.'):
        layer_budgets([1, 1, 1, 1], 0.1, 0)
    with pytest.raises(ValueError, match='at least 1 .got 0 and 9.'):
        layer_budgets([], 0.1, 9)
    with pytest.raises(
        ValueError, match='3 layers of 1 to 10 tokens must be in their range .got 31.'
    ):
        apportion([1, 1, 1], 31, 1, 10)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_weights_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match='must be finite'):
        layer_budgets([0.5, bad], 0.1, 100)


def test_negative_weights_are_refused():
    with pytest.raises(ValueError, match='must be >= 0'):
        layer_budgets([0.5, -0.5], 0.1, 100)
