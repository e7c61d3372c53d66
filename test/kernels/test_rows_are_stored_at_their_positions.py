"""All implementations of a store write only each slot's own tokens, at their positions.

Tokens that would lie beyond the row are not written.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.dense import dense_form
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_rows, torch_store

ROWS, MAX_TOKENS, DIM = 6, 20, 12


def make_case(rows, starts, counts, tokens, kv_heads, padding):
    generator = torch.Generator().manual_seed(7)
    slots = len(rows) + padding
    k, v = torch.randn(2, slots, tokens, kv_heads, DIM, generator=generator)
    keys, values = torch.randn(2, ROWS, kv_heads, MAX_TOKENS, DIM, generator=generator)
    lengths = np.zeros((1, ROWS), np.int32)
    batch = RowBatch(slots, lengths, tokens)
    return k, v, keys, values, batch.bind(rows, starts, counts)


def store(k, v, keys, values, batch):
    torch_store(k, keys, batch)
    torch_store(v, values, batch)


def expected(k, v, keys, values, batch):
    keys, values = keys.clone(), values.clone()
    for slot, row, start, count in batch.spans:
        for token in range(count):
            if not 0 <= start + token < MAX_TOKENS:
                continue
            keys[row, :, start + token] = k[slot, token]
            values[row, :, start + token] = v[slot, token]
    return keys, values


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
    tokens=st.integers(1, 8),
    kv_heads=st.sampled_from([1, 2]),
    padding=st.integers(0, 3),
    data=st.data(),
)
def test_twin_stores_any_slots(rows, tokens, kv_heads, padding, data):
    starts = [data.draw(st.integers(-3, MAX_TOKENS + 1)) for _ in rows]
    counts = [data.draw(st.integers(1, tokens)) for _ in rows]
    case = make_case(rows, starts, counts, tokens, kv_heads, padding)
    wanted = expected(*case)
    store(*case)
    assert torch.equal(case[2], wanted[0]) and torch.equal(case[3], wanted[1])


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), max_size=ROWS, unique=True),
    tokens=st.integers(1, 8),
    kv_heads=st.sampled_from([1, 2]),
    padding=st.integers(1, 3),
    data=st.data(),
)
def test_dense_form_stores_any_slots_after_a_first_one(rows, tokens, kv_heads, padding, data):
    least = [0, *(-3 for _ in rows)]
    starts = [data.draw(st.integers(low, MAX_TOKENS - 1)) for low, _ in zip(least, rows)]  # noqa: B905
    counts = [data.draw(st.integers(1, tokens)) for _ in rows]
    case = make_case(rows, starts, counts, tokens, kv_heads, padding)
    wanted = expected(*case)
    with dense_form():
        store_rows(*case)
    assert torch.equal(case[2], wanted[0]) and torch.equal(case[3], wanted[1])


INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
from test_rows_are_stored_at_their_positions import expected, make_case
from embodied_kv.kernels.triton_store import store_rows
for case in (
        ([3], [0], [5], 8, 1, 0), ([4, 0, 2], [1, 19, 7], [1, 1, 1], 1, 2, 2),
        ([1, 5], [0, 0], [3, 8], 8, 2, 1),
        ([1, 2, 3], [20, -1, 25], [1, 1, 1], 1, 2, 0), ([2, 4], [17, -6], [8, 8], 8, 2, 1)):
    made = make_case(*case)
    wanted = expected(*made)
    store_rows(*made)
    assert torch.equal(made[2], wanted[0]) and torch.equal(made[3], wanted[1]), case
print('equal')
"""


def test_triton_kernel_stores_the_same_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernel needs the triton package')
    monkeypatch.setenv('TRITON_INTERPRET', '1')  # read when triton is imported
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == 'equal', run.stderr
