"""Statistics over a prefix and a causal tail equal those over both in one segment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from post_vision import P, rows

from embodied_kv.kernels.score import (
    KvSegment,
    kernel_post_vision_statistics,
    merge_rows,
    post_vision_statistics,
    torch_post_vision_statistics,
    torch_row_statistics,
)

DIM, HEADS = 16, 4


def make_segments(prefixes, tau, kv_heads, seed, room=5):
    """Return one slot per prefix length; the tail holds the queries' own keys, and spare room."""
    g = torch.Generator().manual_seed(seed)
    slots = len(prefixes)
    q = 3 * torch.randn(slots, tau, HEADS, DIM, generator=g)
    prefix = torch.randn(slots, kv_heads, max(prefixes) + room, DIM, generator=g)
    tail = torch.randn(slots, kv_heads, tau + room, DIM, generator=g)
    return q, (
        KvSegment(prefix, torch.tensor(prefixes, dtype=torch.int32)),
        KvSegment(
            tail,
            torch.full((slots,), tau, dtype=torch.int32),
            torch.zeros(slots, dtype=torch.int32),
        ),
    )


def together(q, segments, slot):
    """Return a slot's float64 scores over both segments, [tau, heads, keys]; -inf where hidden."""
    prefix, tail = segments
    tau = q.shape[1]
    keys = torch.cat([prefix.k[slot, :, : prefix.lengths[slot]], tail.k[slot, :, :tau]], 1)
    keys = keys.double().repeat_interleave(HEADS // keys.shape[0], 0)
    score = torch.einsum('thd,hnd->thn', q[slot].double(), keys) * DIM**-0.5
    limit = int(prefix.lengths[slot]) + torch.arange(tau) + 1
    hidden = torch.arange(keys.shape[1]) >= limit[:, None]
    return score.masked_fill(hidden[:, None], float('-inf'))


@pytest.mark.parametrize(
    'statistics', [torch_post_vision_statistics, kernel_post_vision_statistics]
)
@settings(deadline=None, max_examples=40)
@given(
    prefixes=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    tau=st.integers(1, 50),
    kv_heads=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_two_segments_equal_one(statistics, prefixes, tau, kv_heads, seed, data):
    q, segments = make_segments(prefixes, tau, kv_heads, seed)
    queries = [data.draw(st.integers(1, tau)) for _ in prefixes]
    columns, density = statistics(q, segments, P, torch.tensor(queries, dtype=torch.int32))
    for slot, (n, asked) in enumerate(zip(prefixes, queries, strict=True)):
        score = together(q, segments, slot)[:asked]
        expected = score.softmax(-1)[..., :n].sum(0)
        torch.testing.assert_close(columns[slot, :, :n].double(), expected, atol=1e-5, rtol=0)
        assert (columns[slot, :, n:] == 0).all()
        seen = score > float('-inf')
        weight = (score - score.amax(-1, keepdim=True)).exp()
        kept = (seen & (weight >= P)).sum((0, 2)) / seen.sum((0, 2))
        near = ((weight / P - 1).abs() < 1e-4).sum((0, 2)) / seen.sum((0, 2))
        assert ((density[slot] - kept).abs() <= near + 1e-6).all()


def test_a_row_of_columns_sums_to_what_the_tail_leaves():
    q, segments = make_segments([30, 12], 7, 2, seed=1)
    whole, _ = post_vision_statistics(q, segments, P)
    alone, _ = post_vision_statistics(q, segments[:1], P)
    torch.testing.assert_close(alone.sum(-1), torch.full((2, HEADS), 7.0))
    assert (whole.sum(-1) < 7).all()


@pytest.mark.parametrize(
    'statistics', [torch_post_vision_statistics, kernel_post_vision_statistics]
)
def test_a_slot_without_keys_or_without_queries_has_no_columns_and_no_density(statistics):
    q, (prefix, _) = make_segments([30, 12], 7, 2, seed=4)
    empty = KvSegment(prefix.k, torch.tensor([0, 12], dtype=torch.int32))
    columns, density = statistics(q, [empty], P)
    assert (columns[0] == 0).all() and (density[0] == 0).all() and (density[1] > 0).all()
    columns, density = statistics(q, [prefix], P, torch.tensor([7, 0], dtype=torch.int32))
    assert (columns[1] == 0).all() and (density[1] == 0).all() and (density[0] > 0).all()


def test_an_empty_segment_changes_no_bit_of_the_rows():
    q, segments = make_segments([30, 12], 7, 2, seed=2)
    rows_of_prefix = torch_row_statistics(q, segments[0].k, segments[0].lengths)
    nothing = torch.full((2, 7, HEADS), float('-inf')), torch.zeros(2, 7, HEADS)
    for pair in ((rows_of_prefix, nothing), (nothing, rows_of_prefix)):
        merged = merge_rows(*pair)
        assert torch.equal(merged[0], rows_of_prefix[0])
        assert torch.equal(merged[1], rows_of_prefix[1])
    top, total = merge_rows(nothing, nothing)
    assert torch.equal(top, nothing[0]) and torch.equal(total, nothing[1])


@pytest.mark.parametrize('cut', [1, 13, 29])
def test_merged_rows_equal_float64(cut):
    q, (prefix, _) = make_segments([30], 5, 2, seed=3, room=0)
    parts = [
        torch_row_statistics(q, k, torch.tensor([k.shape[2]], dtype=torch.int32))
        for k in (prefix.k[:, :, :cut], prefix.k[:, :, cut:])
    ]
    keys = prefix.k.double().repeat_interleave(2, 1)
    expected = rows(torch.einsum('sthd,shnd->sthn', q.double(), keys) * DIM**-0.5)
    for found, wanted in zip(merge_rows(*parts), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-6)
