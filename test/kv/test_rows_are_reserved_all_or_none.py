"""A batch reserves all of its rows or none; rows that were not written are free after the block.

Streams are evicted only if their end frees a row, and only if the batch then gets all its rows.
"""

import pytest
import torch
from kv_cases import frame, make_manager, write

from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.rows import OutOfRowsError


@pytest.fixture
def kv():
    return make_manager(4, 8, reserved=1)


def ask(kv, handle):
    return kv.create(handle, Query('?', [3], max_tokens=4))


def test_more_rows_than_there_are_hold_none(kv):
    with pytest.raises(OutOfRowsError, match='5 .* of 4 prefix rows'), kv.reserving(5, 0.0):
        pass
    assert kv.stats().rows_free == 4
    kv.check_integrity()


def test_an_error_frees_what_was_not_committed(kv):
    with pytest.raises(ZeroDivisionError), kv.reserving(3, 0.0) as rows:
        handle = write(kv, rows[0])
        raise ZeroDivisionError
    assert kv.stats().rows_free == 3
    assert kv.frames.current() == handle
    kv.check_integrity()


def test_rows_that_nobody_wrote_are_free_after_the_block(kv):
    with kv.reserving(3, 0.0) as rows:
        assert len(set(rows)) == 3 and kv.stats().rows_free == 1
    assert kv.stats().rows_free == 4


def test_a_row_that_was_committed_and_reserved_again_is_the_next_writers(kv):
    with kv.reserving(1, 0.0) as (row,):
        kv.acquire(write(kv, row, robot='a'))
        kv.frames.adopt(kv.reserve(0.0), 4, robot='b', sequence=0, stamp=0).release()
        handle = write(kv, kv.reserve(0.0), robot='b')
        frame(kv, robot='b')  # frees the previous row, which may be reserved
        again = kv.reserve(0.0)
        assert again == handle.row
    kv.frames.abandon(again)
    kv.check_integrity()


def test_a_batch_that_cannot_have_its_rows_ends_no_stream(kv):
    streams = [ask(kv, frame(kv)), ask(kv, frame(kv))]
    with pytest.raises(OutOfRowsError), kv.reserving(4, 0.0):  # one is the newest frame's
        pass
    assert [stream.reason for stream in streams] == ['', '']


def test_only_streams_whose_end_frees_a_row_are_ended(kv):
    kept = kv.acquire(frame(kv))
    on_kept = [ask(kv, kept.handle) for _ in range(2)]
    whole = ask(kv, frame(kv))
    compressed = ask(kv, frame(kv))
    kv.streams.hold_copy(
        compressed, kv.copies.compress(compressed.lease, [torch.tensor([[0, 2]])])
    )
    current = ask(kv, frame(kv))
    with kv.reserving(2, 0.0):
        kv.check_integrity()
    ended = [s.reason for s in (*on_kept, whole, compressed, current)]
    assert ended == ['', '', 'evicted', '', '']
    assert kv.stats().evictions == 1


def test_all_streams_of_a_row_give_way_together(kv):
    oldest = ask(kv, frame(kv))
    shared = [ask(kv, frame(kv))]
    shared.append(ask(kv, shared[0].lease.handle))
    frame(kv)
    with kv.reserving(3, 0.0):
        pass
    assert [s.reason for s in (oldest, *shared)] == ['evicted'] * 3


def test_leases_of_a_batch_come_back_if_one_is_stale(kv):
    good, bad = frame(kv, robot='a'), frame(kv, robot='b')
    frame(kv, robot='b')
    with pytest.raises(LookupError), kv.frames.leases([good, bad]):
        pass
    assert kv.stats().leases == 0
    with pytest.raises(ZeroDivisionError), kv.frames.leases([good]) as (lease,):
        assert lease.handle == good and kv.stats().leases == 1
        raise ZeroDivisionError
    assert kv.stats().leases == 0
