"""A row batch keeps only the plans and masks of its present binding; nothing else keeps any."""

import gc

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kernels.attention import torch_row_attention
from embodied_kv.kernels.rows import RowBatch

LENGTH, BLOCK, ROWS = 512, 64, 4
MASK = 4 * BLOCK * LENGTH  # bytes of the largest mask


def held():
    """Return the bytes of all live tensors."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) is Tensor)
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def block(start, lengths):
    """Return a batch of consecutive tokens of row 0; each sees those before it, and itself."""
    batch = RowBatch(BLOCK, lengths, causal=True)
    return batch.bind([0] * BLOCK, starts=range(start, start + BLOCK))


def test_many_different_blocks_leave_nothing():
    lengths = np.full((1, ROWS), LENGTH, np.int32)
    k, v = torch.randn(2, ROWS, 1, LENGTH, 8)
    q = torch.randn(BLOCK, 1, 2, 8)
    before = held()
    for start in range(LENGTH - BLOCK):
        torch_row_attention(q, k, v, block(start, lengths))
    assert held() - before < 2 * MASK


def test_a_batch_bound_again_and_again_holds_one_plan_of_each_layer():
    lengths = np.full((2, ROWS), LENGTH, np.int32)
    batch = RowBatch(1, lengths, BLOCK, causal=True)
    before = held()
    for start in range(LENGTH - BLOCK):
        batch.bind([0], starts=[start])
        assert [batch.plan(layer).runs[0].longest for layer in range(2)] == [start + BLOCK] * 2
    assert held() - before < 3 * MASK


def test_batch_bound_as_before_keeps_its_plan():
    lengths = np.array([[5, 7, 7, 3]], np.int32)
    batch = RowBatch(3, lengths)
    plan = batch.bind([1, 3]).plan(0)
    assert batch.bind([1, 3]).plan(0) is plan
    lengths[0, 3] = 4
    other = batch.bind([1, 3]).plan(0)
    assert other is not plan and other.runs[-1].longest == 4
    assert batch.bind([3, 1]).plan(0) is not other
