"""A shared row or copy is freed once, by its last holder, and nothing is evicted in vain."""

import pytest
import torch
from budget_cases import ORDER, TablePool, Thing
from kv_cases import make_manager, write

from embodied_kv.kv.budget import EvictionPlan, KvBudget, OverBudgetError
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.pool import Evictable, HeldRow
from embodied_kv.kv.rows import OutOfRowsError

TOKEN = 2 * 2 * 4 * 4  # bytes: k and v, layers, width, of float32
ROW = 16 * TOKEN
BUDGET = 4 * ROW
STREAM = 2 * TOKEN  # its query, and its answer
FIXED = ('action',)


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def kv(clock):
    kv_budget = KvBudget(BUDGET, ORDER)
    return make_manager(6, 4, (6, 256), clock=lambda: clock[0], layers=2, kv_budget=kv_budget)


def fill(kv):
    """Fill the budget with bytes that cannot be evicted."""
    kv.budget.join(beside := TablePool())
    reserved = sum(pool.bytes_reserved for pool in kv.pools)
    beside.add(kv.budget, Thing(BUDGET - reserved, consumers=FIXED))


@pytest.mark.parametrize(('length', 'fits'), [(12, True), (11, False)])
def test_streams_end_for_a_frame_if_their_row_makes_room_for_it(kv, length, fits):
    handle = write(kv, kv.reserve(0.0), length=length)
    streams = [kv.create(handle, Query('?', [3], max_tokens=1)) for _ in range(2)]
    write(kv, kv.reserve(0.0), length=16)  # now only its streams hold the first row
    fill(kv)
    assert ROW - 2 * STREAM == 12 * TOKEN
    if fits:
        kv.frames.abandon(kv.reserve(0.0))
        assert [stream.reason for stream in streams] == ['evicted'] * 2
    else:
        with pytest.raises(OutOfRowsError, match='prefixes: no room'):
            kv.reserve(0.0)
        assert [stream.reason for stream in streams] == [''] * 2
    kv.check_integrity()


@pytest.mark.parametrize(('size', 'fits'), [(20 * TOKEN, True), (20 * TOKEN + 1, False)])
def test_a_frame_and_its_copy_are_counted_once(kv, clock, size, fits):
    copies = {}
    for robot, deadline in (('a', -1.0), ('b', 9.0)):
        handle = write(kv, kv.reserve(0.0), 0, robot, 16, deadline, prefill_ms=1.0)
        with kv.frames.acquire(handle) as lease:
            kept = [torch.arange(4)[None]] * 2
            copies[robot] = kv.copies.compress(lease, kept)
        kv.keep_copy(['language' if robot == 'a' else 'action'], copies[robot])
    fill(kv)
    clock[0] = 5.0  # the frame of a has expired
    kv.budget.join(asking := TablePool('asking'))
    if fits:
        asking.add(kv.budget, Thing(size))
        assert kv.frames.current('a') is None
    else:
        with pytest.raises(OverBudgetError, match='asking: no room'):
            asking.add(kv.budget, Thing(size))
        assert kv.frames.current('a') is not None  # nothing was evicted
        assert kv.copies.assigned(kv.frames.current('a'), 'language') is copies['a']
    kv.check_integrity()


def test_what_lies_in_a_pool_below_its_floor_helps_nobody():
    streams, rows = TablePool('streams'), TablePool('rows')
    going = EvictionPlan({streams: 10, rows: 3})
    held = HeldRow(rows, 0, 7, holders=2)
    first, second = (Evictable(size, 1.0, int, holds=(held,)) for size in (4, 5))
    assert going.add(streams, first) == 4  # the row stays: the second holds it
    assert going.add(streams, second) == 5 + 3
    assert going.add(rows, Evictable(7, 1.0, int, holds=(HeldRow(rows, 0, 7),))) == 0  # was freed
    assert going.add(streams, Evictable(9, 1.0, int)) == 1


def test_only_what_went_is_counted_as_evicted():
    kv_budget, pool = KvBudget(10, ORDER), TablePool()
    kv_budget.join(pool)
    pool.add(kv_budget, Thing(10))
    pool.evictable = lambda: [Evictable(0, 1.0, lambda: 0, promised=10)]  # in use by now
    with pytest.raises(OverBudgetError), kv_budget.claim(pool, 5):
        pass
    assert kv_budget.evictions == {}


def test_a_stream_that_wrote_nothing_yet_frees_what_it_was_promised(kv):
    stream = kv.create(write(kv, kv.reserve(0.0)), Query('?', [3], max_tokens=1))
    (offer,) = kv.streams.evictable()
    assert offer.bytes == 0 and offer.evict() == offer.size == STREAM
    assert stream.reason == 'evicted'
