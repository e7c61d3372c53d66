"""A claim or a new stream makes few offers, however much could be evicted."""

import pytest
import torch
from kv_cases import make_manager, write

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.compressed_pool import CompressedPool
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.pool import HeldRow
from embodied_kv.kv.stream_pool import StreamPool
from embodied_kv.memory.cache import HostCache

MANY = 300
QUERY = Query('?', [3, 4], max_tokens=4)


def counted(monkeypatch, kind, name):
    """Return a list of the calls of a method from now on."""
    calls, real = [], getattr(kind, name)

    def call(self, *args):
        calls.append(args)
        return real(self, *args)

    monkeypatch.setattr(kind, name, call)
    return calls


def test_a_frame_asks_the_host_cache_for_what_goes_alone(monkeypatch):
    layer = torch.zeros(1, 20, 8), torch.zeros(1, 20, 8)
    total = 2 * MANY * sum(part.nbytes for part in layer)
    kv_budget = KvBudget(total)
    kv = make_manager(8, 4, kv_budget=kv_budget)
    cache = HostCache(total, kv_budget)
    kv_budget.join(cache)
    for unit in range(MANY):
        for number in range(2):
            cache.put(f'u{unit}', number, layer, 1e-4)
    offers = counted(monkeypatch, HostCache, '_offer')
    write(kv, kv.reserve(0.0))
    assert kv_budget.evictions == {'host cache': 1} and cache.get('u0', 0) is None
    assert len(offers) <= 3


@pytest.mark.parametrize('shares_a_row', [True, False])
def test_a_stream_that_joins_many_looks_at_none_of_them_alone(monkeypatch, shares_a_row):
    kv = make_manager(MANY + 4, MANY)
    handle = write(kv, kv.reserve(0.0))
    streams = []
    for _ in range(MANY):
        streams.append(kv.create(handle, QUERY))
        if not shares_a_row:
            handle = write(kv, kv.reserve(0.0))
    offers, held = (
        counted(monkeypatch, *of) for of in ((StreamPool, '_offer'), (HeldRow, '__init__'))
    )
    kv.create(handle, QUERY)
    assert (streams[0].reason, streams[1].reason) == ('evicted', '')
    assert not offers and len(held) <= 3


def test_rows_that_streams_hold_are_ranked_without_a_look_at_each(monkeypatch):
    kv = make_manager(MANY, MANY)
    streams = [kv.create(write(kv, kv.reserve(0.0)), QUERY) for _ in range(kv.language_rows_max)]
    for _ in range(2):
        kv.reserve(0.0)
    assert kv.frames.rows_free == 0
    offers, held = (
        counted(monkeypatch, *of) for of in ((StreamPool, '_offer'), (HeldRow, '__init__'))
    )
    kv.reserve(0.0)
    assert [stream.reason for stream in streams[:2]] == ['evicted', '']
    assert not offers and len(held) <= 3


def test_a_claim_makes_few_offers_of_copies(monkeypatch):
    kv = make_manager(MANY + 4, 4, (MANY, 32 * MANY), kv_budget=(kv_budget := KvBudget(2**30)))
    for robot in range(MANY):
        with kv.frames.acquire(write(kv, kv.reserve(0.0), robot=f'r{robot}')) as lease:
            kv.keep_copy(['language'], kv.copies.compress(lease, [torch.arange(2)[None]]))
    kv_budget.capacity = kv_budget.bytes_used
    offers = counted(monkeypatch, CompressedPool, '_offer')
    with kv_budget.claim(kv.streams, 1):
        assert len(kv.copies) == MANY - 1 and len(offers) <= 3
