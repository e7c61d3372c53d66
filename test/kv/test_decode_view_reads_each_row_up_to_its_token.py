"""A decode view stores one token per row and reads what each layer of the row has before it."""

import pytest
import torch

from embodied_kv.kernels.rows import PADDING
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.decode_view import DecodeView
from embodied_kv.kv.sparse_position_view import SparsePositionView

LAYERS, ROWS, TOKENS, HEADS, KV_HEADS, DIM = 3, 4, 24, 4, 2, 8
# row: logical position of its token, tokens that each layer lacks before it
BATCH = {0: (5, ()), 2: (20, (3, 0, 3)), 3: (11, (0, 4, 2))}
EVEN = {1: (9, ()), 2: (7, (2, 2, 2))}


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
    for row, (at, lacks) in batch.items():
        arena.set_length(row, at + 1 - min(lacks, default=0))
    return arena


def bound(arena, slots, batch, view=None):
    positions, absent = zip(*batch.values(), strict=True)
    return (view or DecodeView(arena, slots)).bind([*batch], positions, absent)


@pytest.mark.parametrize('slots', [3, 5])
@pytest.mark.parametrize('batch', [BATCH, EVEN])
def test_each_token_reads_its_row_as_it_does_alone(slots, batch):
    arena, alone = filled(batch), filled(batch)
    view, n = bound(arena, slots, batch), len(batch)
    for layer in range(LAYERS):
        q = random(slots, 1, HEADS, DIM, seed=layer)
        k, v = random(2, slots, 1, KV_HEADS, DIM, seed=layer)
        out = view.attend(layer, q, k, v)
        for slot, (row, (at, lacks)) in enumerate(batch.items()):
            own = SparsePositionView(alone, row, lacks).bind(torch.tensor([at]))
            parts = (part[slot : slot + 1] for part in (q, k, v))
            assert torch.allclose(out[slot], own.attend(layer, *parts)[0], atol=1e-6)
        assert not out[n:].any()
    assert torch.equal(arena.kv, alone.kv)  # padding is stored nowhere


def test_every_layer_has_a_whole_table_of_its_own():
    """A captured step reads all of them, also those of layers that lack as many tokens."""
    arena = filled(BATCH)
    view = bound(
        arena, 5, BATCH, bound(arena, 5, EVEN)
    )  # of what was bound before, nothing is left
    buffers = {buffer.name: buffer.tensor for buffer in view.buffers}
    for layer, table in enumerate(buffers['tables']):
        wanted = [
            [row, at - (lacks or (0,) * LAYERS)[layer], 1, int(arena.lengths[0, row])]
            for row, (at, lacks) in BATCH.items()
        ]
        assert table.T.tolist() == wanted + [[PADDING, 0, 0, 0]] * 2
    assert buffers['positions'].tolist() == [[5], [20], [11], [0], [0]]


def test_a_new_view_stores_nothing():
    arena = filled(BATCH)
    before = arena.kv.clone()
    part = random(2, 1, KV_HEADS, DIM)
    DecodeView(arena, 2).store(0, part, part, part)
    assert torch.equal(arena.kv, before)
