"""The closed form of the visible entries equals a count of them, and density is 1 - gamma."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from post_vision import make_case, visible

from embodied_kv.kernels.score import density, visible_entries


@settings(deadline=None)
@given(
    tau=st.integers(1, 50),
    n=st.integers(1, 60),
    causal=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_closed_form_equals_a_count(tau, n, causal, padded, seed):
    case = make_case(4, tau, 2, 1, n, causal=causal, seed=seed)
    queries = case.queries if padded else torch.full((4,), tau)
    counted = visible(case) & (torch.arange(tau) < queries[:, None])[:, :, None]
    found = visible_entries(case.lengths, tau, case.starts, case.queries if padded else None)
    assert found.dtype == torch.int64
    assert torch.equal(found, counted.sum((1, 2)))


def test_density_is_one_minus_gamma_and_zero_where_nothing_is_seen():
    low = torch.tensor([[3, 0], [0, 0]], dtype=torch.int32)
    assert density(low, torch.tensor([4, 0])).tolist() == [[0.25, 1.0], [0.0, 0.0]]


def test_counts_beyond_int32_stay_exact():
    lengths = torch.tensor([100_000], dtype=torch.int32)
    assert visible_entries(lengths, 50_000).item() == 5_000_000_000
