"""Streams are evicted for a row in order of worth, and only if the row is then available."""

import pytest
from budget_cases import TablePool, Thing
from kv_cases import make_manager, write

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.rows import OutOfRowsError

ROW = 2 * 16 * 2 * 4 * 4  # bytes of a row: k and v, tokens, layers, width, of float32


def manager(rows, budget=400, floor=0, streams=4):
    """Return a manager. budget, floor: in rows."""
    kv_budget = KvBudget(budget * ROW, EvictionOrder.read())
    return make_manager(
        rows, streams, (6, 256), reserved=1, layers=2, kv_budget=kv_budget, floor=floor * ROW
    )


def ask(kv, prefill_ms=0.0, length=16, max_tokens=9):
    handle = write(kv, kv.reserve(0.0), length=length, prefill_ms=prefill_ms)
    return kv.create(handle, Query('?', [3], max_tokens=max_tokens))


def crowded(budget):
    """Return a manager without a free row, and the small stream that alone could free one.

    Nothing else in the budget can be evicted.
    """
    kv = manager(6, budget, floor=2)
    stream = ask(kv, length=4, max_tokens=1)
    for _ in range(5):
        kv.acquire(write(kv, kv.reserve(0.0), length=4))
    kv.budget.join(beside := TablePool('host cache'))
    taken = 2 * ROW + kv.streams.bytes_reserved
    beside.add(kv.budget, Thing(budget * ROW - taken, consumers=('action',)))
    return kv, stream


def test_a_frame_that_the_budget_refuses_ends_no_stream():
    kv, stream = crowded(budget=4)
    assert kv.frames.rows_free == 0
    with pytest.raises(OutOfRowsError, match='prefixes: no room'):
        kv.reserve(0.0)
    assert stream.reason == '' and kv.stats().evictions == 0
    kv.check_integrity()


def test_a_row_that_the_claim_made_free_is_not_made_free_again():
    kv = manager(4, budget=6)  # neither a row nor the bytes for another frame
    streams = [ask(kv) for _ in range(3)]
    write(kv, kv.reserve(0.0), length=16)
    assert [stream.reason for stream in streams] == [''] * 3
    kv.reserve(0.0)
    assert kv.budget.evictions == {'streams': 1} and kv.stats().evictions == 1


@pytest.mark.parametrize('costs', [(1000.0, 1.0), (1.0, 1000.0)])
def test_the_stream_that_is_made_again_in_no_time_ends(costs):
    kv = manager(3)
    streams = [ask(kv, cost) for cost in costs]
    write(kv, kv.reserve(0.0), length=16)
    kv.reserve(0.0)
    assert [s.reason for s in streams] == ['' if cost > 1 else 'evicted' for cost in costs]


def test_two_streams_of_a_row_are_worth_their_row_once():
    kv = manager(3, streams=8)
    shared = [ask(kv, 10.0)]
    shared.append(kv.create(shared[0].lease.handle, shared[0].query))
    alone = ask(kv, 1.0)
    own, rows = kv.streams.bytes_for(alone.query), kv.streams.by_row()
    assert rows.sizes.tolist() == [ROW + 2 * own, own]  # the other row is the newest frame
    assert rows.costs.tolist() == pytest.approx([0.01, 0.001]), 'one prefill makes it again'
    write(kv, kv.reserve(0.0), length=16)
    kv.reserve(0.0)
    assert [s.reason for s in (*shared, alone)] == ['', '', 'evicted']


@pytest.mark.parametrize('bound', [dict(rows=1), dict(streams=1)])
def test_a_lowered_limit_ends_what_is_worth_least(bound):
    kv = manager(6)
    dear, cheap = ask(kv, 1000.0), ask(kv, 1.0)
    frames = write(kv, kv.reserve(0.0), length=16)
    kv.set_limits(**bound)
    assert (dear.reason, cheap.reason) == ('', 'evicted') and kv.frames.holds(frames)
    kv.check_integrity()
