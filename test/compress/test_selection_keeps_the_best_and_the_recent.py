"""`select` of every method: exact budgets, ascending positions, recent window, top k, ties."""

import pytest
import torch
from compress_cases import make_statistics
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.compress.base import Statistics
from embodied_kv.compress.budget import total_budget
from embodied_kv.compress.registry import METHODS, method

BUDGETED = [name for name in METHODS if name != 'full']


@pytest.mark.parametrize('name', BUDGETED)
@settings(deadline=None, max_examples=25)
@given(
    layers=st.integers(1, 8),
    groups=st.sampled_from([(4, 1), (4, 2), (4, 4), (1, 1)]),
    n=st.integers(1, 400),
    keep_ratio=st.floats(0.01, 1),
    seed=st.integers(0, 99),
)
def test_every_method_meets_the_total_with_sorted_distinct_positions(
    name, layers, groups, n, keep_ratio, seed
):
    heads, kv_heads = groups
    stats = make_statistics(layers, heads, kv_heads, n, seed=seed)
    kept = method(name).select(stats, keep_ratio)
    assert sum(part.shape[1] for part in kept) == total_budget(keep_ratio, layers, n)
    for part in kept:
        assert part.dtype == torch.int64 and part.shape[0] == kv_heads
        assert (part[:, 1:] > part[:, :-1]).all()
        assert part.min() >= 0 and part.max() < n
        window = int(0.1 * part.shape[1] + 0.5)
        assert (part[:, part.shape[1] - window :] == torch.arange(n - window, n)).all()


@pytest.mark.parametrize('name', METHODS)
def test_a_keep_ratio_of_1_keeps_every_position(name):
    stats = make_statistics(n=37)
    for part in method(name).select(stats, 1):
        assert torch.equal(part, torch.arange(37).repeat(2, 1))


def test_full_keeps_every_position_for_any_keep_ratio():
    stats = make_statistics(n=200)
    assert [part.shape[1] for part in method('full').select(stats, 0.1)] == [200] * 6


def test_too_short_to_compress_is_kept_whole():
    for part in method('vl_cache').select(make_statistics(n=9), 0.1):
        assert torch.equal(part, torch.arange(9).repeat(2, 1))


def test_a_budget_of_one_token_has_no_window_and_keeps_the_best():
    stats = make_statistics(layers=2, heads=2, kv_heads=2, n=10)
    for layer, part in enumerate(method('h2o').select(stats, 0.1)):
        assert torch.equal(part[:, 0], stats.columns[layer].argmax(-1))


def test_the_rest_is_each_kv_heads_top_k_of_its_groups_mean():
    stats = make_statistics(layers=1, n=100)
    (part,) = method('h2o').select(stats, 0.2)
    mean = stats.columns[0].view(2, 2, 100).mean(1)  # two query heads per group
    for head in range(2):
        best = mean[head, :98].topk(18).indices.sort().values
        assert torch.equal(part[head], torch.cat([best, torch.tensor([98, 99])]))


def test_ties_go_to_the_lower_position():
    stats = Statistics(torch.ones(1, 2, 50), torch.ones(1, 2), 2, 1)
    (part,) = method('vl_cache').select(stats, 0.2)
    assert part.tolist() == [[*range(9), 49]] * 2


def test_text_and_vision_win_by_the_same_measure():
    n, text = 100, slice(70, 100)
    to_text, to_vision = torch.full((1, 1, n), 0.1), torch.full((1, 1, n), 0.1)
    to_text[..., text] = 1.0
    to_vision[..., : text.start] = 1.0
    for columns, positions in ((to_text, range(70, 90)), (to_vision, range(20))):
        stats = Statistics(columns, torch.ones(1, 1), 1, 5)
        (part,) = method('vl_cache', recent=0).select(stats, 0.2)
        assert part[0].tolist() == list(positions)


@pytest.mark.parametrize('name', ['vl_cache', 'h2o', 'snapkv', 'pyramidkv', 'zipcache'])
def test_attention_of_no_query_is_refused(name):
    with pytest.raises(
        ValueError, match=f'{name} must be scored by at least one query.*streaming_llm or rand'
    ):
        method(name).select(Statistics.unscored(2, 1, 100), 0.1)


def test_statistics_of_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r'density must be of shape \(2, 4\) \(got \(2, 3\)\)'):
        Statistics(torch.ones(2, 4, 9), torch.ones(2, 3), 2, 1)
    with pytest.raises(ValueError, match='heads must be a multiple of 3 KV heads .got 4.'):
        Statistics(torch.ones(2, 4, 9), torch.ones(2, 4), 3, 1)
