"""A decode view stores one token per row and reads each row up to this token."""

import pytest
import torch

from embodied_kv.kernels.rows import PADDING
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import DecodeView, SparsePositionView

LAYERS, ROWS, TOKENS, HEADS, KV_HEADS, DIM = 3, 4, 24, 4, 2, 8
# row: position of its token
BATCH = {0: 5, 2: 20, 3: 11}
OTHER = {1: 9, 2: 7}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(batch):
    arena = Arena(
        layers=LAYERS,
        rows=ROWS,
        kv_heads=KV_HEADS,
        max_tokens=TOKENS,
        head_dim=DIM,
        dtype=torch.float32,
    )
    arena.kv.copy_(random(*arena.kv.shape))
    for row, at in batch.items():
        arena.set_length(row, at + 1)
    return arena


def bound(arena, slots, batch, view=None):
    return (view or DecodeView(arena, slots)).bind([*batch])


@pytest.mark.parametrize('slots', [3, 5])
@pytest.mark.parametrize('batch', [BATCH, OTHER])
def test_each_token_reads_its_row_as_it_does_alone(slots, batch):
    arena, alone = filled(batch), filled(batch)
    view, n = bound(arena, slots, batch), len(batch)
    for layer in range(LAYERS):
        q = random(slots, 1, HEADS, DIM, seed=layer)
        k, v = random(2, slots, 1, KV_HEADS, DIM, seed=layer)
        out = view.attend(layer, q, k, v)
        for slot, (row, at) in enumerate(batch.items()):
            own = SparsePositionView(alone, row).bind(torch.tensor([at]))
            parts = (part[slot : slot + 1] for part in (q, k, v))
            assert torch.allclose(out[slot], own.attend(layer, *parts)[0], atol=1e-6)
        assert not out[n:].any()
    assert torch.equal(arena.kv, alone.kv)  # padding is not stored


def test_what_was_bound_before_is_replaced():
    arena = filled(BATCH | OTHER)
    view = bound(arena, 5, BATCH, bound(arena, 5, OTHER))
    table, positions = (buffer.tensor for buffer in view.buffers)
    wanted = [[row, at, 1, at + 1] for row, at in (BATCH | OTHER).items() if row in BATCH]
    assert table.T.tolist() == wanted + [[PADDING, 0, 0, 0]] * 2
    assert positions.tolist() == [[5], [7], [11], [0], [0]]


def test_a_new_view_stores_nothing():
    arena = filled(BATCH)
    before = arena.kv.clone()
    part = random(2, 1, KV_HEADS, DIM)
    DecodeView(arena, 2).store(0, part, part, part)
    assert torch.equal(arena.kv, before)
