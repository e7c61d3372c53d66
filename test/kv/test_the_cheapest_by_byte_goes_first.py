"""KV of the lowest worth per byte is evicted first, but never KV that actions read.

KV that is worth more than a claim is not evicted for it.
"""

import pytest
import yaml
from budget_cases import ORDER, TablePool, Thing
from hypothesis import given
from hypothesis import strategies as st
from kv_cases import make_manager, write

from embodied_kv.capsule.registry import DevicePool
from embodied_kv.engine.compression import ACTION
from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.compressed_pool import CompressedPool
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import CONSUMERS, MIB, PATH, POOLS, EvictionOrder
from embodied_kv.kv.frame_memory import FrameMemory
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.kv.prefix_pool import PrefixPool
from embodied_kv.kv.stream_pool import StreamPool
from embodied_kv.memory.cache import HostCache
from embodied_kv.planning.planner_row import PlannerRow

THINGS = st.lists(
    st.builds(
        Thing,
        size=st.integers(1, 20),
        cost=st.floats(0.01, 9),
        idle=st.floats(0, 99),
        consumers=st.sampled_from([(), ('language',), ('action',)]),
    ),
    min_size=1,
    max_size=12,
)


def filled(things, order=ORDER):
    """Return a KV budget that is full of these things, and the two pools that share them."""
    kv_budget, pools = (
        KvBudget(sum(t.size for t in things), order),
        [TablePool('a'), TablePool('b')],
    )
    for pool in pools:
        kv_budget.join(pool)
    for number, thing in enumerate(things):
        pools[number % 2].add(kv_budget, thing)
    return kv_budget, pools


def worth(thing, order=ORDER):
    return order.worth('a', thing.size, thing.cost, thing.idle)


@given(things=THINGS, size=st.integers(1, 40))
def test_nothing_stays_that_is_worth_less_than_what_went(things, size):
    kv_budget, pools = filled(things)
    try:
        pools[0].add(kv_budget, new := Thing(size))
    except OverBudgetError:
        assert sum(t.size for t in things if 'action' not in t.consumers) < size
        assert not pools[0].gone and not pools[1].gone
        return
    gone = pools[0].gone + pools[1].gone
    stay = [t for pool in pools for t in pool.things if t is not new]
    assert not any('action' in t.consumers for t in gone)
    for thing in stay:
        assert 'action' in thing.consumers or worth(thing) >= max(map(worth, gone))
    assert sum(t.size for t in gone) - max(gone, key=worth).size < size  # and no more than needed


@given(things=THINGS, cost=st.floats(0.01, 9))
def test_what_is_worth_more_than_what_comes_stays(things, cost):
    kv_budget, pools = filled(things)
    try:
        pools[1].add(kv_budget, Thing(5), cost=cost)
    except OverBudgetError:
        pass
    assert all(worth(t) <= cost / 5 for t in pools[0].gone + pools[1].gone)


def test_cost_fades_without_use():
    order = EvictionOrder(half_after_seconds=10.0)
    assert order.worth('a', 2, 4.0) == 2.0
    assert order.worth('a', 2, 4.0, idle=10.0) == 1.0
    assert order.worth('a', 2, 4.0, idle=30.0) == 0.5
    assert EvictionOrder().worth('a', 2, 4.0, idle=30.0) == 2.0


def test_an_unknown_cost_is_what_the_policy_assumes():
    order = EvictionOrder(assumed_seconds_per_mib={'a': 3.0})
    assert order.worth('a', 7, 0.0) == pytest.approx(3.0 / MIB)
    assert order.worth('b', 7, 0.0) == 0.0


def test_what_is_copied_before_it_goes_goes_for_those_who_wait():
    kv_budget, pools = filled([Thing(5, quick=False)])
    with pytest.raises(OverBudgetError, match='a: no room for 5 bytes'):
        pools[0].add(kv_budget, Thing(5))
    pools[0].add(kv_budget, Thing(5), wait=True)
    assert len(pools[0].gone) == 1 and kv_budget.evictions == {'a': 1}


def test_the_shipped_policy_never_gives_up_what_actions_read():
    assert EvictionOrder.read().never == ('action',)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(never='action'), 'never must be a list'),
        (dict(never=['actions']), 'never must be a list of consumers, of action, language'),
        (dict(half_after_seconds=-1), 'half_after_seconds must be >= 0 s and finite .got -1.'),
        (
            dict(half_after_seconds='long'),
            "half_after_seconds must be >= 0 s and finite .got 'long'.",
        ),
        (dict(assumed_seconds_per_mib=3), 'seconds by pool'),
        (dict(assumed_seconds_per_mib={'capsules': True}), 'of capsules must be .* .got True.'),
        (dict(assumed_seconds_per_mib={'capsule': 1.0}), 'by pool, of prefixes, copies'),
        (dict(always=[]), 'fields must be'),
    ],
)
def test_a_policy_that_is_none_is_refused(tmp_path, change, message):
    path = tmp_path / 'policy.yaml'
    path.write_text(yaml.safe_dump(yaml.safe_load(PATH.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        EvictionOrder.read(path)


@pytest.mark.parametrize('content', [None, b'never: [', b'\xff', b''])
def test_a_file_that_cannot_be_read_is_refused_by_one_line(tmp_path, content):
    path = tmp_path / 'policy.yaml'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ValueError, match='states no order of eviction .* leave engine.kv_eviction_file'
    ) as e:
        EvictionOrder.read(path)
    assert str(path) in str(e.value) and '\n' not in str(e.value)


def test_each_pool_that_the_policy_may_name_is_one_of_the_suite():
    pools = CompressedPool, DevicePool, FrameMemory, HostCache, PlannerRow, PrefixPool
    assert {pool.name for pool in (*pools, StreamPool)} == set(POOLS)
    assert (ACTION, LANGUAGE) == CONSUMERS


def test_a_frame_is_used_until_its_last_lease_comes_back():
    now = [0.0]
    kv = make_manager(4, 4, clock=lambda: now[0])
    handle = write(kv, kv.reserve(0.0), deadline=0.0)
    lease = kv.acquire(handle)
    now[0] = 20.0
    assert kv.frames.evictable() == []  # a lease reads it
    lease.release()
    now[0] = 50.0
    assert [offer.idle for offer in kv.frames.evictable()] == [30.0]
    stream = kv.create(handle, Query('?', [3], max_tokens=4))
    now[0] = 90.0
    assert [offer.idle for offer in kv.streams.evictable()] == [0.0]  # a live stream is in use
    kv.streams.release(stream, 'cancelled')
    assert [offer.idle for offer in kv.frames.evictable()] == [0.0]
