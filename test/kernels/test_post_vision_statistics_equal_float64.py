"""Row and column statistics of both implementations equal float64."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from post_vision import check, make_case

from embodied_kv.kernels.score import (
    torch_column_statistics,
    torch_reduce_counts,
    torch_row_statistics,
)

TWIN = torch_row_statistics, torch_column_statistics, torch_reduce_counts


@settings(deadline=None, max_examples=60)
@given(
    slots=st.integers(1, 4),
    tau=st.integers(1, 50),
    kv_heads=st.sampled_from([1, 2, 4]),
    n=st.integers(1, 90),
    causal=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_twin_equals_float64(slots, tau, kv_heads, n, causal, dtype, seed):
    case = make_case(slots, tau, 4, kv_heads, n, causal=causal, dtype=dtype, seed=seed)
    check(case, *TWIN)


def test_a_row_that_sees_nothing_has_no_maximum_and_no_sum():
    case = make_case(2, 3, 4, 2, 7)
    lengths = torch.tensor([0, 7], dtype=torch.int32)
    top, total = torch_row_statistics(case.q, torch.ones_like(case.k), lengths)
    assert (top[0] == float('-inf')).all() and (total[0] == 0).all()
    assert top[1].isfinite().all() and (total[1] >= 1).all()


# The interpreter would multiply the bit patterns of bfloat16, so they are widened first. A product
# of two of them is exact in float32, as on a tensor core.
INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder
from post_vision import check, make_case
from embodied_kv.kernels.triton_score import column_statistics, reduce_counts, row_statistics
def wide(builder, x):
    return builder.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x
dot = InterpreterBuilder.create_dot
InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(
    self, wide(self, a), wide(self, b), *rest)
SHAPES = (  # slots, tau, heads, kv_heads, N, head_dim, causal
    (1, 1, 4, 1, 1, 16, False), (3, 50, 4, 2, 131, 16, False), (2, 17, 3, 3, 65, 24, False),
    (2, 33, 8, 1, 64, 48, False), (2, 50, 2, 2, 50, 16, True), (3, 5, 4, 1, 96, 16, True),
    (1, 40, 2, 1, 70, 256, False))
for dtype in torch.float32, torch.bfloat16:
    for seed, (*sizes, causal) in enumerate(SHAPES):
        check(make_case(*sizes, causal, dtype, seed), row_statistics, column_statistics,
              reduce_counts)
partial = torch.randint(0, 9, (2, 3, 2500), dtype=torch.int32)
assert torch.equal(reduce_counts(partial), partial.sum(-1, dtype=torch.int32))
print('equal')
"""


def test_triton_kernels_equal_float64_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernels need the triton package')
    monkeypatch.setenv(
        'TRITON_INTERPRET', '1'
    )  # read when triton is imported: hence a new process
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == 'equal', run.stderr
    assert 'Warning' not in run.stderr
