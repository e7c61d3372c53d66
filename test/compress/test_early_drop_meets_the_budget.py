"""FastV and HiRED keep the expected vision tokens, and meet the keep ratio."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.compress.fastv import FastV
from benchmarks.compress.hired import HiRed
from embodied_kv.compress.budget import total_budget


@settings(deadline=None)
@given(
    keep_ratio=st.floats(0.01, 1),
    layers=st.integers(3, 30),
    vision=st.integers(50, 800),
    text=st.integers(0, 100),
)
def test_fastv_comes_as_near_to_the_keep_ratio_as_whole_tokens_allow(
    keep_ratio, layers, vision, text
):
    fastv = FastV()
    budgets = fastv.budgets(keep_ratio, layers, vision, text)
    n, later = vision + text, layers - 2
    assert budgets[:2] == [n, n] and len(budgets) == layers
    wanted = max(total_budget(keep_ratio, layers, n), 2 * n + later * text)
    assert abs(sum(budgets) - wanted) <= later / 2


def test_fastv_drops_all_vision_where_the_keep_ratio_cannot_be_met():
    fastv = FastV(drop_after=2)
    assert fastv.kept(0.1, layers=6, vision=100, text=10) == 0
    assert fastv.budgets(0.1, 6, 100, 10) == [110, 110, 10, 10, 10, 10]
    assert fastv.budgets(0.5, 6, 100, 10) == [110, 110, 28, 28, 28, 28]
    assert fastv.budgets(1, 6, 100, 10) == [110] * 6


def test_fastv_keeps_what_the_heads_of_the_last_query_attend_to():
    attention = torch.tensor([[9, 1, 2, 0, 5, 5, 9], [9, 1, 4, 0, 5, 5, 9.0]])
    vision = torch.tensor([1, 2, 3, 4, 5])  # 0 and 6 are text
    assert FastV().survivors(attention, vision, 3).tolist() == [2, 4, 5]
    assert FastV().survivors(attention, vision, 1).tolist() == [4]  # ties: the lower one
    assert FastV().survivors(attention, vision, 0).tolist() == []


@pytest.mark.parametrize('drop_after', [0, 6, 7])
def test_fastv_needs_layers_on_both_sides(drop_after):
    with pytest.raises(ValueError, match=f'drop_after {drop_after} does not split 6 layers'):
        FastV(drop_after).kept(0.5, 6, 100, 10)


def test_hired_keeps_its_share_of_the_prompt_but_never_drops_text():
    assert HiRed().kept(0.4, vision=90, text=10) == 30
    assert HiRed().kept(0.05, vision=90, text=10) == 0
    assert HiRed().kept(1, vision=90, text=10) == 90


@settings(deadline=None)
@given(
    views=st.integers(1, 4),
    tokens=st.integers(1, 60),
    share=st.floats(0, 1),
    seed=st.integers(0, 999),
)
def test_hired_spends_its_whole_budget_on_each_views_best(views, tokens, share, seed):
    first, last = torch.rand(2, views, tokens, generator=torch.Generator().manual_seed(seed))
    kept = round(share * views * tokens)
    chosen = HiRed().select(first, last, kept)
    assert sum(len(positions) for positions in chosen) == kept
    for positions, scores in zip(chosen, last, strict=True):
        best = scores.topk(len(positions)).indices.sort().values
        assert torch.equal(positions, best)


def test_hired_gives_more_to_the_view_where_attention_gathers():
    first = torch.full((2, 10), 0.1)
    first[0, :5] = torch.tensor([0.2, 0.2, 0.2, 0.19, 0.19])  # both views sum to 1
    first[0, 5:] = 0.004
    assert torch.allclose(first.sum(1), torch.ones(2))
    budgets = HiRed().view_budgets(first, 8)
    assert sum(budgets) == 8 and budgets[0] > budgets[1]


def test_hired_refuses_a_share_out_of_range():
    with pytest.raises(ValueError, match='salient is 0, not a share'):
        HiRed(salient=0)
    with pytest.raises(ValueError, match=r'must be in \[0.01, 1\] \(got 0.001\)'):
        HiRed().kept(0.001, 90, 10)
