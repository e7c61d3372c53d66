"""Two rows are reserved, so a frame finds a row with any number of streams.

The oldest stream is evicted for it.
"""

import threading

import pytest
from kv_cases import frame, make_manager

from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.rows import OutOfRowsError


def make(rows=5, streams=20):
    return make_manager(rows, streams)


def test_a_frame_always_finds_a_row_and_its_action_a_lease():
    kv = make()
    for sequence in range(50):
        handle = frame(kv, sequence)
        with kv.acquire(handle):
            kv.create(handle, Query('?', [3], max_tokens=4))
            next_row = kv.reserve(0.0)  # the next frame is written while an action reads this one
            kv.frames.abandon(next_row)
        kv.check_integrity()
        assert kv.stats().rows_free >= kv.reserved


def test_the_oldest_stream_is_ended_and_reported():
    kv = make(rows=5)
    streams = [kv.create(frame(kv, i), Query('?', [3], max_tokens=4)) for i in range(4)]
    assert [s.reason for s in streams] == ['evicted', '', '', '']
    assert kv.streams.pop_ended() == streams[:1]
    assert kv.stats().evictions == 1


def test_streams_of_one_frame_share_its_row():
    kv = make(rows=3)
    handle = frame(kv, 0)
    streams = [kv.create(handle, Query('?', [3], max_tokens=4)) for _ in range(20)]
    assert {s.lease.row for s in streams} == {handle.row}
    assert kv.stats().evictions == 0


def test_a_lowered_limit_ends_the_oldest_streams():
    kv = make(rows=8)
    streams = [kv.create(frame(kv, i), Query('?', [3], max_tokens=4)) for i in range(5)]
    kv.set_limits(rows=2)
    assert [bool(s.reason) for s in streams] == [True, True, True, False, False]
    kv.set_limits(streams=1)
    assert kv.streams.live() == streams[4:]
    kv.check_integrity()


@pytest.mark.parametrize(
    'bounds', [dict(rows=7), dict(rows=-1), dict(streams=21), dict(streams=-5)]
)
def test_a_limit_out_of_range_is_refused_and_nothing_changes(bounds):
    kv = make(rows=8)
    before = kv.stats()
    with pytest.raises(ValueError, match='0 to'):
        kv.set_limits(**bounds)
    assert kv.stats() == before


def test_a_query_longer_than_a_decode_row_is_refused_before_it_holds_anything():
    kv = make()
    handle = frame(kv, 0)
    with pytest.raises(ValueError, match='do not fit the 16 tokens of decode KV'):
        kv.create(handle, Query('?', [3] * 10, max_tokens=7))
    assert kv.stats().leases == 0


def test_when_actions_lease_everything_the_error_says_so():
    kv = make(rows=3)
    leases = [kv.acquire(frame(kv, i)) for i in range(3)]
    with pytest.raises(OutOfRowsError, match='release leases'):
        kv.reserve(0.0)
    leases[0].release()
    assert kv.reserve(0.0) == leases[0].row


def test_a_limit_that_is_lowered_while_a_stream_waits_holds():
    kv = make(rows=5, streams=1)
    handle = frame(kv, 0)
    live = kv.streams.grow([kv.create(handle, Query('?', [3], max_tokens=4))], 1)
    refused = []

    def create():
        try:
            kv.create(handle, Query('?', [3], max_tokens=4))
        except ValueError as error:
            refused.append(str(error))

    creator = threading.Thread(target=create)
    creator.start()
    while not live[0].reason:  # the thread has ended the only stream, and waits for its row
        pass
    kv.set_limits(streams=0)
    kv.streams.update(live, [[9]], eos=1)
    creator.join(10)
    assert refused == ['the limits must allow a stream (got 0); raise them with kv/set_limits']
    assert kv.stats().leases == 0
    kv.check_integrity()
