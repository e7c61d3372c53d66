"""A stream that reads a compressed copy holds no prefix row, so no limit of rows ends it."""

import pytest
import torch
from kv_cases import frame, make_manager

from embodied_kv.kv.decode_stream import Query

QUERY = Query('?', [3], max_tokens=4)


@pytest.fixture
def kv():
    """Return a manager in which language may hold one row."""
    return make_manager(3, 8)


def compressed(kv):
    stream = kv.create(frame(kv), QUERY)
    kv.streams.hold_copy(stream, kv.copies.compress(stream.lease, [torch.tensor([[0, 2]])]))
    return stream


def test_opening_a_stream_ends_none_of_them(kv):
    streams = [compressed(kv) for _ in range(3)]
    kv.create(frame(kv), QUERY)
    assert [stream.reason for stream in streams] == ['', '', '']
    kv.check_integrity()


def test_the_stream_that_holds_the_row_gives_way_though_it_is_not_the_oldest(kv):
    old, whole = compressed(kv), kv.create(frame(kv), QUERY)
    kv.create(frame(kv), QUERY)
    assert (old.reason, whole.reason) == ('', 'evicted')


def test_a_limit_of_no_rows_leaves_them_alive(kv):
    old, whole = compressed(kv), kv.create(frame(kv), QUERY)
    kv.set_limits(rows=0)
    assert (old.reason, whole.reason) == ('', 'evicted')
    kv.check_integrity()


def test_a_copy_of_a_frame_that_is_joined_takes_no_row(kv):
    whole, handle = kv.create(frame(kv), QUERY), frame(kv)
    with kv.acquire(handle) as lease:
        kv.keep_copy(['language'], kv.copies.compress(lease, [torch.tensor([[0, 2]])]))
    kv.create(handle, QUERY)
    assert whole.reason == ''
    kv.check_integrity()
