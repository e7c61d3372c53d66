"""A stream that is ended while a step computes with it keeps its rows until the step is over."""

import threading

import pytest
from kv_cases import frame, make_manager

from embodied_kv.kv.decode_stream import Query

QUERY = Query('?', [5, 6], max_tokens=8)
EOS = 1


@pytest.fixture
def kv():
    return make_manager(5, 2, layers=2)


def test_a_stream_that_ends_in_a_step_keeps_its_rows_until_it_is_over(kv):
    stream = kv.create(frame(kv, 1, length=7), QUERY)
    frame(kv, 2)  # supersedes the first frame, whose row only the stream holds now
    live = kv.streams.grow([stream], 2)
    kv.streams.release(stream, 'cancelled')
    assert kv.streams.live() == [] and kv.streams.pop_ended() == [stream]
    assert lengths(kv, stream) == (2, 7)
    kv.check_integrity()
    kv.streams.update(live, [[9]], EOS)
    assert stream.tokens == []
    assert lengths(kv, stream) == (0, 0)
    kv.check_integrity()


def lengths(kv, stream):
    """Return the tokens in the stream's decode row and in its prefix row."""
    return kv.decode_kv.lengths[0, stream.decode_row], kv.prefixes.lengths[0, stream.lease.row]


def test_a_step_that_fails_frees_what_ended_in_it(kv):
    stream = kv.create(frame(kv, 1), QUERY)
    kv.streams.grow([stream], 2)
    kv.streams.release(stream, 'error')
    kv.streams.end_step()
    assert kv.stats().leases == 0
    kv.check_integrity()


def test_a_decode_row_of_a_step_is_given_to_a_new_stream_only_afterwards(kv):
    handle = frame(kv, 1)
    old = [kv.create(handle, QUERY), kv.create(handle, QUERY)]
    live = kv.streams.grow(old, 2)
    made = []
    creator = threading.Thread(target=lambda: made.append(kv.create(handle, QUERY)))
    creator.start()
    while not old[0].reason:  # the thread has ended the oldest, and waits
        pass
    assert not made
    kv.streams.update(live, [[9], [9]], EOS)
    creator.join(10)
    assert made[0].decode_row == old[0].decode_row
    assert old[0].reason == 'evicted' and old[1].tokens == [9]
    kv.check_integrity()
