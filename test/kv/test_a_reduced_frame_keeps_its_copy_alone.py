"""A reduced frame has no row: language reads its compressed copy until the next frame."""

from dataclasses import replace

import pytest
import torch
from kv_cases import make_manager, write

from embodied_kv.engine.compression import ACTION
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.kv.pool import GONE

QUERY = Query('?', [3], max_tokens=4)


@pytest.fixture
def kv():
    return make_manager(4, 8)


def scored(kv, sequence=0, consumers=(LANGUAGE,), deadline=1e9, robot=''):
    """Return a frame with a copy of three tokens for each consumer."""
    handle = write(kv, kv.reserve(0.0), sequence, robot, 9, deadline)
    with kv.acquire(handle) as lease:
        for consumer in consumers:
            kv.keep_copy([consumer], kv.copies.compress(lease, [torch.tensor([[0, 2, 5]])]))
    return handle


def reduced(kv, **how):
    handle = scored(kv, **how)
    kv.reduce(handle)
    kv.check_integrity()
    return handle


def test_its_row_is_free_and_its_bytes_are_those_of_the_copy(kv):
    before = kv.stats()
    handle = reduced(kv)
    after = kv.stats()
    assert after.rows_free == before.rows_free == 4
    assert after.bytes_used == 3 * kv.compressed.bytes_per_token
    assert after.bytes_saved == (9 - 3) * kv.compressed.bytes_per_token
    assert kv.frames.current() == handle


def test_streams_open_on_it(kv):
    handle = reduced(kv)
    streams = [kv.create(handle, QUERY) for _ in range(3)]
    assert all(stream.lease.is_copy for stream in streams)
    assert len({stream.lease.row for stream in streams}) == 1
    kv.check_integrity()


def test_others_are_refused_with_the_reason(kv):
    with pytest.raises(StaleHandleError, match='only its compressed copy for language is kept'):
        kv.acquire(reduced(kv))
    assert kv.frames.acquire_current('') is None


def test_copies_that_only_actions_read_are_freed(kv):
    reduced(kv, consumers=(LANGUAGE, ACTION))
    assert len(kv.copies) == 1


def test_frame_without_a_copy_for_language_keeps_its_row(kv):
    handle = reduced(kv, consumers=(ACTION,))
    with kv.acquire(handle) as lease:
        assert not lease.is_copy


def test_leased_row_stays(kv):
    handle = scored(kv)
    with kv.frames.acquire(handle):
        kv.reduce(handle)
        assert not kv.frames.is_reduced(handle)
    kv.check_integrity()


def test_frame_that_is_not_the_newest_stays(kv):
    old = scored(kv)
    with kv.frames.acquire(old):
        scored(kv, 1)
    kv.reduce(old)
    assert not kv.frames.is_reduced(old)
    kv.check_integrity()


def test_next_frame_replaces_it_and_its_streams_go_on(kv):
    old = reduced(kv)
    stream = kv.create(old, QUERY)
    scored(kv, 1)
    assert not stream.reason and len(kv.copies) == 2
    with pytest.raises(StaleHandleError, match='is gone'):
        kv.create(old, QUERY)
    kv.streams.release(stream, 'cancelled')
    assert len(kv.copies) == 1
    kv.check_integrity()


def test_row_of_another_frame_in_its_place_is_not_taken_for_it(kv):
    old = reduced(kv)
    other = write(kv, kv.reserve(0.0), 7, 'b', 5)
    assert other.row == old.row
    stream = kv.create(old, QUERY)
    with kv.acquire(other) as lease:
        assert stream.lease.is_copy and not lease.is_copy
    counts, sizes = kv.frames.freeable()
    assert counts[old.row] == 0 and sizes[old.row] == 0  # the newest frame of robot b
    kv.check_integrity()


def test_it_is_freed_when_its_time_is_over_and_no_stream_reads_it(kv):
    handle = reduced(kv, deadline=1.0)
    stream = kv.create(handle, QUERY)
    kv.frames.abandon(kv.reserve(now=100.0))
    assert len(kv.copies) == 1
    kv.streams.release(stream, 'cancelled')
    kv.frames.abandon(kv.reserve(now=100.0))
    assert len(kv.copies) == 0 and kv.frames.current() is None
    kv.check_integrity()


def test_it_is_freed_when_it_is_retired(kv):
    kv.frames.retire(reduced(kv))
    assert len(kv.copies) == 0 and kv.stats().bytes_used == 0


def test_copy_of_a_forged_handle_is_refused(kv):
    handle = reduced(kv)
    forged = replace(handle, sequence=5)
    with pytest.raises(StaleHandleError):
        kv.acquire(forged, LANGUAGE)


def test_handle_that_a_message_has_rounded_is_accepted(kv):
    handle = reduced(kv)
    rounded = replace(handle, prefill_ms=handle.prefill_ms + 1e-6)
    with kv.acquire(rounded, LANGUAGE) as lease:
        assert lease.is_copy


def test_its_copy_is_not_evicted_for_other_kv(kv):
    whole, sole = scored(kv, robot='b'), reduced(kv)
    offers = kv.copies.evictable()
    assert len(offers) == 1
    offers[0].evict()
    assert kv.copies.assigned(whole, LANGUAGE) is None
    kv.acquire(sole, LANGUAGE).release()
    kv.check_integrity()


def test_an_offer_from_before_the_reduction_evicts_nothing():
    """Offers are made without the lock of the cache; a frame may lose its row after one."""
    kv = make_manager(4, 8)
    handle = scored(kv)
    offers = kv.copies.evictable()
    offered = offers[0]
    kv.reduce(handle)
    assert offered.evict() == 0
    assert offers[0] is GONE
    assert kv.create(handle, QUERY).lease.is_copy
    kv.check_integrity()
