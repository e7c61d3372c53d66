"""Rows that are pieces of one ragged token axis, one per layer, are read like other rows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.attention import torch_row_attention
from embodied_kv.kernels.rows import PADDING, RowBatch

LAYERS, DIM = 3, 16


def make_case(rows, tokens, kv_heads, seed):
    """Return ragged rows in random order and with gaps; slots of row `PADDING` read nothing."""
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    count = max(rows) + 2
    lengths = random.integers(1, 9, (LAYERS, count), dtype=np.int32)
    offsets = np.zeros_like(lengths)
    end = 0
    for position in random.permutation(LAYERS * count):
        end += int(random.integers(0, 3))  # tokens that belong to no row
        offsets.flat[position] = end
        end += int(lengths.flat[position])
    k, v = torch.randn(2, 1, kv_heads, end, DIM, generator=generator)
    q = torch.randn(len(rows) + 1, tokens, 4, DIM, generator=generator)
    batch = RowBatch(
        len(rows) + 1,
        lengths,
        tokens,
        offsets=offsets,
    )
    return q, k, v, batch.bind(rows), lengths, offsets


def expected(q, k, v, batch, lengths, offsets, layer):
    """Return the results of each slot alone, over a copy of its piece."""
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3])
    for slot, row, _, _ in batch.spans:
        piece = slice(offsets[layer, row], offsets[layer, row] + lengths[layer, row])
        own = RowBatch.dense(1, int(lengths[layer, row]), q.shape[1], q.device)
        out[slot], lse[slot] = (
            part[0]
            for part in torch_row_attention(
                q[slot : slot + 1], k[:, :, piece].clone(), v[:, :, piece].clone(), own
            )
        )
    return out, lse


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.integers(PADDING, 5), min_size=1, max_size=7).filter(lambda r: max(r) >= 0),
    tokens=st.integers(1, 3),
    kv_heads=st.sampled_from([1, 2]),
    seed=st.integers(0, 999),
)
def test_a_piece_is_read_as_a_row_of_its_own(rows, tokens, kv_heads, seed):
    q, k, v, batch, lengths, offsets = make_case(rows, tokens, kv_heads, seed)
    for layer in range(LAYERS):
        wanted = expected(q, k, v, batch, lengths, offsets, layer)
        for ours, theirs in zip(torch_row_attention(q, k, v, batch, layer), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
from test_ragged_rows_are_read_in_place import LAYERS, expected, make_case
from embodied_kv.kernels.triton_attention import row_attention
for rows, tokens, kv_heads in (([3, -1, 0, 3], 1, 1), ([1, 0], 2, 2)):
    q, k, v, batch, lengths, offsets = make_case(rows, tokens, kv_heads, 5)
    for layer in range(LAYERS):
        wanted = expected(q, k, v, batch, lengths, offsets, layer)
        for ours, theirs in zip(row_attention(q, k, v, batch, layer), wanted):
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
print('equal')
"""


def test_triton_kernel_reads_the_same_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernel needs the triton package')
    monkeypatch.setenv('TRITON_INTERPRET', '1')  # read when triton is imported
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == 'equal', run.stderr
