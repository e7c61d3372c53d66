"""Each method scores tokens and shares its budget as its paper states."""

import pytest
import torch
from compress_cases import make_statistics

from embodied_kv.compress.base import Statistics
from embodied_kv.compress.registry import METHODS, method


def test_vl_cache_gives_dense_layers_more():
    stats = make_statistics(layers=4, n=1000)
    dense = torch.tensor([0.2, 0.4, 0.6, 0.8])[:, None].expand(4, 4)
    stats = Statistics(stats.columns, dense, 2, 20)
    assert method('vl_cache').budgets(stats, 0.1) == [40, 80, 120, 160]
    assert method('h2o').budgets(stats, 0.1) == [100] * 4


def test_streaming_llm_keeps_sinks_and_the_last_tokens():
    kept = method('streaming_llm').select(Statistics.unscored(2, 1, 100), 0.2)
    for part in kept:
        assert part[0].tolist() == [0, 1, 2, 3, *range(84, 100)]


@pytest.mark.parametrize('budget', range(1, 8))
def test_streaming_llm_keeps_sinks_first(budget):
    (part,) = method('streaming_llm').select(Statistics.unscored(1, 1, 100), budget / 100)
    sinks = min(budget, 4)
    assert part[0].tolist() == [*range(sinks), *range(100 - budget + sinks, 100)]


def test_snapkv_pools_over_neighbours():
    columns = torch.zeros(1, 2, 9)
    columns[0, 0, 4] = 5.0
    stats = Statistics(columns, torch.ones(1, 2), 1, 32)
    scores = method('snapkv', kernel=3).scores(stats)
    assert torch.allclose(scores[0, 0], torch.tensor([0, 0, 0, 5, 5, 5, 0, 0, 0]) / 6)
    scores = method('snapkv', kernel=5, pooling='max').scores(stats)
    assert scores[0, 0].tolist() == [0, 0, 2.5, 2.5, 2.5, 2.5, 2.5, 0, 0]


def test_vl_cache_pooled_is_vl_cache_over_neighbours_with_equal_budgets():
    pooled, stats = method('vl_cache_pooled', kernel=3), make_statistics(layers=2, n=100)
    own = method('vl_cache').scores(stats)
    inner = (own[..., :-2] + own[..., 1:-1] + own[..., 2:]) / 3
    torch.testing.assert_close(pooled.scores(stats)[..., 1:-1], inner)
    assert pooled.queries == method('vl_cache').queries
    assert pooled.budgets(stats, 0.1) == [10, 10]


@pytest.mark.parametrize('keep_ratio', [0.01, 0.05, 0.1, 0.4, 0.6, 0.9])
def test_pyramidkv_budgets_fall_on_a_line_and_meet_the_total(keep_ratio):
    budgets = method('pyramidkv').budgets(make_statistics(layers=11, n=1000), keep_ratio)
    assert sum(budgets) == round(keep_ratio * 11 * 1000)
    steps = [a - b for a, b in zip(budgets, budgets[1:], strict=False)]
    assert min(steps) >= 0 and max(steps) - min(steps) <= 1
    mean = keep_ratio * 1000
    last = max(mean / 20, 10, 2 * mean - 1000)
    assert abs(budgets[-1] - last) <= 1 and abs(budgets[0] - (2 * mean - last)) <= 1


def test_pyramidkv_of_one_layer_is_snapkv():
    stats = make_statistics(layers=1)
    assert method('pyramidkv').budgets(stats, 0.1) == method('snapkv').budgets(stats, 0.1) == [20]


def test_zipcache_on_a_bidirectional_prefix_equals_h2o():
    stats = make_statistics(n=200, queries=200)
    for a, b in zip(
        method('zipcache').select(stats, 0.1), method('h2o').select(stats, 0.1), strict=True
    ):
        assert torch.equal(a, b)


def test_random_repeats_by_its_seed_and_ignores_scores():
    one, two = make_statistics(seed=1), make_statistics(seed=2)
    picks = [method('random', seed=s).select(stats, 0.1) for s, stats in ((3, one), (3, two))]
    assert all(torch.equal(a, b) for a, b in zip(*picks, strict=True))
    other = method('random', seed=4).select(one, 0.1)
    assert not all(torch.equal(a, b) for a, b in zip(picks[0], other, strict=True))


def test_methods_are_found_by_name_and_others_are_refused():
    assert list(METHODS) == [
        'vl_cache', 'vl_cache_pooled', 'streaming_llm', 'h2o', 'snapkv', 'pyramidkv', 'zipcache',
        'knorm', 'random', 'full',
    ]  # fmt: skip
    assert all(method(name).name == name for name in METHODS)
    with pytest.raises(ValueError, match="must be one of vl_cache, .* .got 'vlcache'."):
        method('vlcache')


@pytest.mark.parametrize(
    'name, fields, message',
    [
        ('vl_cache', dict(recent=1.1), 'recent must be a share in .0, 1. .got 1.1'),
        ('vl_cache', dict(p=0.0), 'p must be in .0, 1. .got 0.0'),
        ('snapkv', dict(window=0), 'window must be >= 1 query'),
        ('snapkv', dict(kernel=4), 'must be odd'),
        ('snapkv', dict(pooling='mean'), ".got 'mean'."),
        ('pyramidkv', dict(beta=0.5), 'the budgets would rise'),
    ],
)
def test_fields_out_of_range_are_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        method(name, **fields)
