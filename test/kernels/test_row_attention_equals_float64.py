"""Both implementations of row_attention equal float64 attention over the row's visible tokens."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.attention import merge, torch_row_attention
from embodied_kv.kernels.rows import RowBatch

ROWS, MAX_TOKENS = 8, 24


def reference(q, k, v, batch, lengths):
    """Return output [slots, T, H, D] and log-sum-exp [slots, T, H] in float64, slot by slot."""
    slots, tokens, heads, dim = q.shape
    group = heads // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    lse = torch.empty(q.shape[:3], dtype=torch.float64)
    out[:], lse[:] = 0, 0  # padding
    for slot, row, start, _ in batch.spans:
        for token in range(tokens):
            visible = int(lengths[row])
            if batch.causal:
                visible = min(visible, start + token + 1)
            for head in range(heads):
                keys = k[row, head // group, :visible].double()
                scores = keys @ q[slot, token, head].double() * dim**-0.5
                out[slot, token, head] = (
                    scores.softmax(0) @ v[row, head // group, :visible].double()
                )
                lse[slot, token, head] = scores.logsumexp(0)
    return out, lse


def bound(rows, lengths, tokens, causal=False, padding=0, own=None):
    slots = len(rows) + padding
    batch = RowBatch(slots, lengths, tokens, causal)
    counts = None if own is None else [own] * len(rows)
    return batch.bind(rows, counts=counts)


def make_case(rows, tokens, causal, kv_heads, seed, dim=16, padding=0, own=None):
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, ROWS, kv_heads, MAX_TOKENS, dim, generator=generator)
    q = torch.randn(len(rows) + padding, tokens, 4, dim, generator=generator)
    lengths = np.random.default_rng(seed).integers(
        tokens, MAX_TOKENS + 1, (1, ROWS), dtype=np.int32
    )
    return q, k, v, bound(rows, lengths, tokens, causal, padding, own), lengths[0]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=9),
    tokens=st.integers(1, 4),
    causal=st.booleans(),
    kv_heads=st.sampled_from([1, 2]),
    seed=st.integers(0, 999),
    padding=st.integers(0, 3),
    data=st.data(),
)
def test_twin_equals_float64_for_any_rows(rows, tokens, causal, kv_heads, seed, padding, data):
    own = data.draw(st.integers(1, tokens))  # the slots' own tokens; the rest is padding
    case = make_case(rows, tokens, causal, kv_heads, seed, padding=padding, own=own)
    q, k, v, batch, lengths = case
    out, lse = torch_row_attention(q, k, v, batch)
    expected_out, expected_lse = reference(q, k, v, batch, lengths)
    torch.testing.assert_close(out.double(), expected_out, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-6, rtol=0)


def test_merge_of_two_segments_equals_attention_over_both():
    q, k, v, batch, _ = make_case([0], 2, False, 1, seed=5)
    full = np.full((1, ROWS), MAX_TOKENS, np.int32)
    whole = torch_row_attention(q, k, v, bound([0], full, 2))[0]
    for cut in (1, 7, MAX_TOKENS - 1):

        def part(keep, length):
            n = np.full((1, ROWS), length, np.int32)
            return torch_row_attention(q, k[:, :, keep], v[:, :, keep], bound([0], n, 2))

        merged = merge(part(slice(cut), cut), part(slice(cut, None), MAX_TOKENS - cut))
        torch.testing.assert_close(merged, whole, atol=1e-6, rtol=0)


def test_neighbouring_rows_are_read_as_one_view():
    *_, batch, _ = make_case([5, 3, 4, 3, 4, 5, 7], 1, False, 1, seed=1)
    runs = [(run.rows.start, run.rows.stop) for run in batch.plan(0).runs]
    assert runs == [(3, 6), (7, 8)]


INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
from test_row_attention_equals_float64 import make_case, reference
from embodied_kv.kernels.triton_attention import row_attention
for rows, tokens, causal, kv_heads, dim, padding, own in (
        ([5, 3, 3, 0], 1, False, 1, 16, 2, 1), ([2, 7, 1], 3, True, 2, 16, 1, 2),
        ([6], 5, True, 1, 24, 0, 5), ([0, 1], 20, False, 1, 16, 0, 20),
        ([4], 6, True, 1, 16, 0, 3)):
    q, k, v, batch, lengths = make_case(rows, tokens, causal, kv_heads, 3, dim, padding, own)
    out, lse = row_attention(q, k, v, batch)
    expected_out, expected_lse = reference(q, k, v, batch, lengths)
    torch.testing.assert_close(out.double(), expected_out, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-6, rtol=0)
print('equal')
"""


def test_triton_kernel_equals_float64_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernel needs the triton package')
    monkeypatch.setenv(
        'TRITON_INTERPRET', '1'
    )  # read when triton is imported: hence a new process
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == 'equal', run.stderr
