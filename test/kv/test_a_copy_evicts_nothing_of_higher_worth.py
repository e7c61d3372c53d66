"""A compressed copy is optional: it is not made if it would evict KV of higher worth."""

import pytest
import torch
from budget_cases import TablePool, Thing
from kv_cases import make_manager, write

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import MIB, EvictionOrder

ORDER = EvictionOrder(('action',), 0.0, {'copies': MIB})  # 1 s per byte
KEPT = [torch.arange(4)[None]] * 2


@pytest.fixture
def kv():
    return make_manager(6, 4, (6, 256), layers=2, kv_budget=KvBudget(4096, ORDER))


def fill(kv, cost):
    kv.budget.join(beside := TablePool())
    free = 4096 - sum(pool.bytes_reserved for pool in kv.pools)
    beside.add(kv.budget, Thing(free, cost=cost * free))
    return beside


@pytest.mark.parametrize(('cost', 'made'), [(2.0, False), (0.5, True)])
def test_only_what_is_worth_no_more_goes_for_it(kv, cost, made):
    handle = write(kv, kv.reserve(0.0), length=16, prefill_ms=1e9)
    streams = [kv.create(handle, Query('?', [3], max_tokens=4)) for _ in range(2)]
    beside = fill(kv, cost)
    copy = kv.copies.compress(streams[0].lease, KEPT)
    assert (copy is not None) == made == bool(beside.gone)
    assert kv.copies.allocation_failures == (not made)
    assert [stream.reason for stream in streams] == ['', '']


def test_the_stream_that_is_compressed_within_its_step_stays(kv):
    """The stream stays although its cost is not known."""
    handle = write(kv, kv.reserve(0.0), length=16)
    stream = kv.create(handle, Query('?', [3], max_tokens=4))
    kv.streams.grow([stream], 1)
    fill(kv, 2.0)
    assert kv.copies.compress(stream.lease, KEPT) is None
    assert stream.reason == ''
    kv.streams.end_step()


def test_a_copy_that_a_stream_goes_on_with_takes_the_place_of_anything(kv):
    handle = write(kv, kv.reserve(0.0), length=16)
    beside = fill(kv, 2.0)
    with kv.copies.adopt([4, 4], 16, handle):
        assert beside.gone
