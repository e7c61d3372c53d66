"""Every way to share a budget among layers meets the total and follows its own rule."""

import pytest
from compress_cases import make_statistics
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.compress.budget import SHARES, floor_budget, total_budget
from embodied_kv.compress.registry import METHODS, method

densities = st.lists(st.floats(0.001, 1), min_size=1, max_size=20)
ratios = st.floats(0.02, 1)


@pytest.mark.parametrize('name', SHARES)
@given(density=densities, keep_ratio=ratios, n=st.integers(50, 2000))
def test_tokens_sum_to_the_total_within_bounds(name, density, keep_ratio, n):
    shared = SHARES[name](density, keep_ratio, n)
    assert sum(shared) == total_budget(keep_ratio, len(density), n)
    assert all(floor_budget(n) <= tokens <= n for tokens in shared)


@given(density=densities, keep_ratio=ratios)
def test_a_bounded_layer_has_half_of_an_equal_share(density, keep_ratio):
    shared = SHARES['bounded'](density, keep_ratio, 1000)
    assert min(shared) >= int(total_budget(keep_ratio, len(density), 1000) / len(density) / 2)


def test_a_starved_layer_is_bounded_and_a_dense_one_keeps_more():
    assert SHARES['density']([0.9, 0.05, 0.05], 0.1, 1000) == [270, 15, 15]
    assert SHARES['bounded']([0.9, 0.05, 0.05], 0.1, 1000) == [200, 50, 50]
    assert SHARES['equal']([0.9, 0.05, 0.05], 0.1, 1000) == [100] * 3


@pytest.mark.parametrize('shares', SHARES)
@pytest.mark.parametrize('name', [name for name in METHODS if name != 'full'])
def test_any_score_goes_with_any_share(name, shares):
    stats = make_statistics(queries=20)
    kept = method(name, shares=shares).select(stats, 0.2)
    wanted = SHARES[shares](stats.dense, 0.2, stats.n)
    assert [part.shape[1] for part in kept] == wanted


@pytest.mark.parametrize(
    'name, shares', [('vl_cache', 'density'), ('h2o', 'equal'), ('pyramidkv', 'pyramid')]
)
def test_a_methods_own_way_is_one_of_them(name, shares):
    stats = make_statistics()
    own, named = (method(name, **more).select(stats, 0.2) for more in ({}, dict(shares=shares)))
    assert all(a.equal(b) for a, b in zip(own, named, strict=True))


def test_another_way_is_refused():
    with pytest.raises(
        ValueError, match="must be one of own, density, equal, boun.* .got 'half'."
    ):
        method('vl_cache', shares='half')
