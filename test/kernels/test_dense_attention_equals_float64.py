"""Dense attention over gathered segments equals float64 over the keys that each query sees."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.dense import before, dense_attention, gather
from embodied_kv.kernels.rows import RowBatch

ROWS, MAX_TOKENS, HEADS, DIM = 6, 12, 4, 16


def reference(q, keys, values, seen):
    """Return the attention in float64, computed by slot, query and head."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = HEADS // keys.shape[1]
    for slot, token, head in np.ndindex(*q.shape[:3]):
        visible = seen.expand(len(q), q.shape[1], -1)[slot, token]
        k, v = (part[slot, head // group, visible].double() for part in (keys, values))
        scores = k @ q[slot, token, head].double() * DIM**-0.5
        out[slot, token, head] = scores.softmax(-1) @ v
    return out


@settings(deadline=None, max_examples=40)
@given(
    slots=st.integers(1, 4),
    tokens=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 4]),
    each=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_mask_of_slots_or_of_queries(slots, tokens, kv_heads, each, seed):
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, slots, kv_heads, MAX_TOKENS, DIM, generator=generator)
    q = torch.randn(slots, tokens, HEADS, DIM, generator=generator)
    size = slots, tokens if each else 1, MAX_TOKENS
    seen = torch.rand(size, generator=generator) < 0.5
    seen[..., 3] = True  # each query sees at least one key
    made = dense_attention(q, keys, values, seen)
    torch.testing.assert_close(made.double(), reference(q, keys, values, seen), atol=2e-6, rtol=0)


def test_mask_of_slots_equals_the_same_mask_for_each_query():
    keys, values = torch.randn(2, 3, 2, MAX_TOKENS, DIM)
    q, lengths = torch.randn(3, 5, HEADS, DIM), torch.tensor([1, 7, MAX_TOKENS])
    seen = before(lengths, MAX_TOKENS)
    each = dense_attention(q, keys, values, seen.expand(-1, 5, -1))
    assert torch.equal(dense_attention(q, keys, values, seen), each)


@given(rows=st.lists(st.integers(-1, ROWS - 1), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_rows_are_gathered_with_their_lengths_and_padding_has_none(rows, seed):
    k = torch.arange(float(ROWS))[:, None, None, None].expand(ROWS, 1, MAX_TOKENS, DIM)
    lengths = np.random.default_rng(seed).integers(0, MAX_TOKENS + 1, (1, ROWS), dtype=np.int32)
    batch = RowBatch(len(rows) + 1, lengths).bind(rows, [0] * len(rows))
    known = batch.lengths[0]
    stale = torch.arange(MAX_TOKENS) >= torch.from_numpy(lengths[0])[:, None]
    k = k.masked_fill(stale[:, None, :, None], float('nan'))  # of an earlier use of the row
    found, _ = gather(k, k, batch, known)
    for slot, row in enumerate([*rows, -1]):
        length = known[slot]
        assert length == (lengths[0, row] if row >= 0 else 0)
        assert (found[slot, :, :length] == row).all() and not found[slot, :, length:].any()
    np.testing.assert_array_equal(before(known, MAX_TOKENS).sum(-1)[:, 0], known)
