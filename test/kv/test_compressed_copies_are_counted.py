"""Compressed copies: prefix rows return to the pool, blocks tile the arena, unread copies end."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_cases import SIZE, make_manager
from kv_cases import frame as reserve_and_write

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import BLOCK, CompressedArena
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.handle import StaleHandleError

LENGTH = 15


@pytest.fixture
def kv():
    kv = make_manager(5, 3, (4, 4 * BLOCK), layers=3, kv_heads=2, max_tokens=20)
    kv.prefixes.k.normal_()
    kv.prefixes.v.normal_()
    return kv


def frame(kv, sequence=0):
    return reserve_and_write(kv, sequence, length=LENGTH)


def some(budgets, seed=0):
    """Return positions [kv_heads, n] of each layer, different ones for every head."""
    random = np.random.default_rng(seed)
    return [
        torch.tensor([sorted(random.choice(LENGTH, n, replace=False)) for _ in range(2)])
        for n in budgets
    ]


def query():
    return Query('what', [5, 6], 4)


def test_a_copy_holds_the_kept_tokens_and_their_position(kv):
    handle, kept = frame(kv), some([3, 1, 7])
    with kv.acquire(handle) as lease:
        copy = kv.copies.compress(lease, kept)
    assert kv.compressed.lengths[:, copy.row].tolist() == [3, 1, 7]
    assert kv.compressed.positions[copy.row] == LENGTH  # not the number of kept tokens
    for layer, positions in enumerate(kept):
        k, v = kv.compressed.piece(layer, copy.row)
        for head in range(2):
            at = positions[head]
            assert torch.equal(k[head], kv.prefixes.layers[layer][0][handle.row, head, at])
            assert torch.equal(v[head], kv.prefixes.layers[layer][1][handle.row, head, at])
    kv.check_integrity()


def test_a_stream_that_reads_a_copy_gives_its_row_back(kv):
    stream = kv.create(frame(kv), query())
    free = kv.stats().rows_free
    kv.streams.hold_copy(stream, kv.copies.compress(stream.lease, some([2, 2, 2])))
    assert stream.lease.is_copy
    frame(kv, 1)  # supersedes the first frame, which has no holder left
    stats = kv.stats()
    assert (stats.rows_free, stats.compressed, stats.leases) == (free, 1, 0)
    assert stats.bytes_saved == (3 * LENGTH - 6) * kv.compressed.bytes_per_token
    kv.check_integrity()
    kv.streams.release(stream, 'cancelled')
    assert kv.compressed.tokens_free == kv.compressed.tokens
    assert kv.stats().bytes_saved == 0
    kv.check_integrity()


def test_other_readers_keep_the_whole_row(kv):
    first, second = frame(kv), query()
    whole = kv.create(first, second)
    small = kv.create(first, second)
    kv.streams.hold_copy(small, kv.copies.compress(small.lease, some([2, 2, 2])))
    frame(kv, 1)
    assert whole.lease.row == first.row
    assert kv.prefixes.lengths[0, first.row] == LENGTH
    assert kv.stats().bytes_saved == -6 * kv.compressed.bytes_per_token  # row and copy are held
    kv.streams.release(whole, 'cancelled')
    with pytest.raises(StaleHandleError):
        kv.acquire(first)
    kv.check_integrity()


def test_a_copy_of_a_frame_is_read_by_all_its_streams(kv):
    handle = frame(kv)
    with kv.acquire(handle) as lease:
        kv.keep_copy(['language'], kv.copies.compress(lease, some([2, 2, 2])))
    streams = [kv.create(handle, query()) for _ in range(3)]
    assert len({s.lease.row for s in streams}) == 1
    assert not kv.acquire(handle).is_copy  # an action reads the row
    kv.check_integrity()


def test_a_copy_outlives_its_frame_as_long_as_it_is_read(kv):
    handle = frame(kv)
    with kv.acquire(handle) as lease:
        kv.keep_copy(['language', 'action'], kv.copies.compress(lease, some([2, 2, 2])))
    stream = kv.create(handle, query())
    frame(kv, 1)
    assert kv.copies.assigned(handle, 'action') is None
    assert kv.stats().compressed == 1
    kv.check_integrity()
    kv.streams.release(stream, 'cancelled')
    assert kv.stats().compressed == 0
    kv.check_integrity()


def test_without_room_there_is_no_copy_and_it_is_counted(kv):
    handle = frame(kv)
    with kv.acquire(handle) as lease:
        copies = [kv.copies.compress(lease, some([BLOCK // 3] * 3)) for _ in range(5)]
    assert [copy is None for copy in copies] == [False] * 4 + [True]
    assert kv.copies.allocation_failures == 1
    kv.check_integrity()
    for copy in copies[:4]:
        copy.release()
    assert kv.compressed.tokens_free == kv.compressed.tokens
    kv.check_integrity()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 9)), max_size=40))
def test_blocks_tile_the_arena_after_any_takes_and_gives(acts):
    arena = CompressedArena(Arena(rows=1, **SIZE | dict(layers=3)), 6, 8 * BLOCK)
    taken = []
    for take, tokens, which in acts:
        if take:
            row = arena.allocate([tokens, 1, 2], 7)
            if row is None:
                biggest = max((end - begin for begin, end in arena._gaps), default=0)
                assert len(taken) == 6 or biggest < tokens + 3
            else:
                taken.append(row)
        elif taken:
            arena.free(taken.pop(which % len(taken)))
        arena.check_integrity()
    for row in taken:
        arena.free(row)
    assert arena.tokens_free == arena.tokens == 8 * BLOCK
