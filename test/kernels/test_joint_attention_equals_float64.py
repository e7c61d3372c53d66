"""Attention over a gathered row and the queries' own keys equals float64 over both."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.joint import joint_attention
from embodied_kv.kernels.rows import RowBatch

ROWS, MAX_TOKENS, HEADS, DIM = 6, 12, 4, 16


def reference(q, own_k, own_v, keys, values, rows, lengths):
    """Slot by slot, head by head."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = HEADS // keys.shape[1]
    for slot, row in enumerate(rows):
        seen = 0 if row < 0 else lengths[row]
        for head in range(HEADS):
            kv = head // group
            k = torch.cat([keys[row, kv, :seen], own_k[slot, :, kv]]).double()
            v = torch.cat([values[row, kv, :seen], own_v[slot, :, kv]]).double()
            scores = q[slot, :, head].double() @ k.T * DIM**-0.5
            out[slot, :, head] = scores.softmax(-1) @ v
    return out


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.integers(-1, ROWS - 1), min_size=1, max_size=5),
    tokens=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 999),
)
def test_any_rows_padding_among_them(rows, tokens, kv_heads, seed):
    generator = torch.Generator().manual_seed(seed)
    slots = len(rows) + 1  # and one that nothing is bound to
    keys, values = torch.randn(2, ROWS, kv_heads, MAX_TOKENS, DIM, generator=generator)
    own_k, own_v = torch.randn(2, slots, tokens, kv_heads, DIM, generator=generator)
    q = torch.randn(slots, tokens, HEADS, DIM, generator=generator)
    lengths = np.random.default_rng(seed).integers(0, MAX_TOKENS + 1, (1, ROWS), dtype=np.int32)
    batch = RowBatch(slots, lengths, torch.from_numpy(lengths), tokens).bind(rows)
    made = joint_attention(q, own_k, own_v, keys, values, batch)
    expected = reference(q, own_k, own_v, keys, values, [*rows, -1], lengths[0])
    torch.testing.assert_close(made.double(), expected, atol=2e-6, rtol=0)
