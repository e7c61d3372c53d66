"""Capsules of all sessions share a budget; the least recently used one is evicted and logged."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import server_cases
import torch
from server_cases import libero, page, running_server

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import NoRoomError, Tier, TierCapacities
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.cache import HostCache
from embodied_kv.serving.websocket.capsule_budget import CapsuleBudget

BYTES = 4096  # per capsule


def capsule(name, size=BYTES):
    return server_cases.capsule(name, size)


@pytest.fixture
def shared():
    """Return three sessions with room for 2 capsules each, and for 4 together."""
    said = []
    budget = CapsuleBudget(4 * BYTES, said.append)
    each = TierCapacities(2 * BYTES, host=0, disk=0, policy='drop')
    registries = [Registry('f', each) for _ in range(3)]
    for number, registry in enumerate(registries):
        budget.share(registry, f'robot {number}')
    return budget, registries, said


def names(registry):
    return [record.name for record in registry.entries()]


def test_least_recently_used_capsule_of_any_session_is_evicted(shared):
    budget, (a, b, c), said = shared
    for registry in (a, b):
        for name in ('one', 'two'):
            registry.add(capsule(name))
    a.get('one')  # least recently used are now a's second, then b's first
    c.add(capsule('one'))
    assert (names(a), names(b), names(c)) == (['one'], ['one', 'two'], ['one'])
    c.add(capsule('two'))
    assert (names(a), names(b), names(c)) == (['one'], ['two'], ['one', 'two'])
    assert budget.given_up == len(said) == 2
    assert 'capsule two of session robot 0 was evicted' in said[0]
    assert budget.bytes == 4 * BYTES


def test_a_sessions_own_bound_comes_first(shared):
    budget, (a, b, _), said = shared
    for registry in (a, b):
        for name in ('one', 'two'):
            registry.add(capsule(name))
    b.add(capsule('three'))  # evicts its own oldest, none of another session
    assert (names(a), names(b)) == (['one', 'two'], ['two', 'three'])
    assert not said and budget.bytes == 4 * BYTES


def test_capsule_that_never_fits_evicts_none(shared):
    budget, (a, b, _), said = shared
    b.add(capsule('one'))
    a.capacities = TierCapacities(9 * BYTES, host=0, disk=0, policy='drop')
    with pytest.raises(NoRoomError, match='all sessions together'):
        a.add(capsule('whole', 5 * BYTES))
    assert names(b) == ['one'] and not said


def test_capsule_beyond_its_session_bound_evicts_no_other(shared):
    budget, (a, b, c), said = shared
    for registry in (a, b):
        for name in ('one', 'two'):
            registry.add(capsule(name))
    with pytest.raises(NoRoomError, match='larger than the tier'):
        c.add(capsule('long', 3 * BYTES))
    assert names(a) == names(b) == ['one', 'two'] and not names(c)
    assert not said and not budget.given_up


def test_own_evictions_are_not_counted_twice(shared):
    budget, (a, b, c), said = shared
    a.add(capsule('oldest'))
    for registry, name in ((b, 'one'), (b, 'two'), (c, 'one')):
        registry.add(capsule(name))
    a.add(capsule('next', BYTES * 3 // 2))  # exceeds both bounds: its own oldest first
    assert (names(a), names(b), names(c)) == (['next'], ['two'], ['one'])
    assert budget.bytes <= 4 * BYTES
    assert len(said) == 2 and budget.given_up == 1  # for another session


def test_forgotten_session_holds_no_bytes(shared):
    budget, (a, b, _), said = shared
    a.add(capsule('one'))
    b.add(capsule('one'))
    assert budget.bytes == 2 * BYTES
    budget.forget('robot 0')
    assert budget.bytes == b.used(Tier.DEVICE) == BYTES and a.used(Tier.DEVICE) == 0
    budget.forget('never there')
    assert not said


@pytest.fixture
def kv_budget():
    """Return a budget for three capsules, of which a unit of the host cache takes one."""
    kv_budget = KvBudget(3 * BYTES)
    kv_budget.join(cache := HostCache(3 * BYTES, kv_budget))
    cache.put('unit', 0, unit(BYTES), seconds=1.0)
    return kv_budget


def unit(size):
    return torch.zeros(size, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)


def on(kv_budget, sessions=2, said=print, each=4 * BYTES, tenants='xxx'):
    budget = CapsuleBudget(12 * BYTES, said, kv_budget)
    budget.divide(len(set(tenants)))
    room = TierCapacities(each, host=0, disk=0, policy='drop')
    registries = [Registry('f', room) for _ in range(sessions)]
    for number, registry in enumerate(registries):
        budget.share(registry, f'robot {number}', tenants[number])
    budget.join()
    return budget, registries


def test_capsules_count_in_the_kv_budget(kv_budget):
    budget, (a, b) = on(kv_budget)
    a.add(capsule('one'))
    b.add(capsule('one'))
    assert kv_budget.bytes_used == kv_budget.capacity == 3 * BYTES and budget.bytes == 2 * BYTES
    kv_budget.check_integrity()
    budget.forget('robot 1')
    assert kv_budget.bytes_used == 2 * BYTES
    budget.leave()
    assert kv_budget.bytes_used == BYTES


def test_capsule_refused_by_the_kv_budget_evicts_none(kv_budget):
    said = []
    budget, (a, b) = on(kv_budget, said=said.append)
    a.add(capsule('one'))
    with pytest.raises(NoRoomError, match='capsules: no room .* raise engine.kv_budget_mib'):
        b.add(capsule('large', 4 * BYTES))
    assert names(a) == ['one'] and not names(b) and not said
    assert kv_budget.bytes_used == 2 * BYTES  # the unit is kept, too


def test_full_kv_budget_evicts_older_capsules_of_the_tenant(kv_budget):
    said = []
    budget, (a, b, other) = on(kv_budget, sessions=3, said=said.append, tenants='xxy')
    for name in ('one', 'two', 'three'):
        a.add(capsule(name))
    b.add(capsule('four'))
    assert (names(a), names(b)) == (['two', 'three'], ['four']) and budget.given_up == 1
    assert said == ['capsule one of session robot 0 was evicted: engine.kv_budget_mib is full']
    with pytest.raises(NoRoomError, match='capsules: no room'):
        other.add(capsule('five'))  # capsules of another tenant stay
    assert (names(a), names(b)) == (['two', 'three'], ['four']) and len(said) == 1
    a.add(capsule('long', 3 * BYTES))
    assert (names(a), names(b)) == (['long'], []) and kv_budget.bytes_used == kv_budget.capacity
    kv_budget.check_integrity()


def test_full_kv_budget_evicts_first_within_the_session(kv_budget):
    budget, (a, b) = on(kv_budget, each=2 * BYTES)
    a.add(capsule('one'))
    for name in ('one', 'two', 'three'):
        b.add(capsule(name))
    assert (names(a), names(b)) == (['one'], ['two', 'three']) and not budget.given_up


def test_capsules_evict_cheaper_pools_and_are_not_evicted(kv_budget):
    budget, (a, _) = on(kv_budget)
    (cache, _) = kv_budget.pools
    for name in ('one', 'two', 'three'):
        a.add(capsule(name))
    assert not len(cache) and kv_budget.evictions == {'host cache': 1}
    cache.put('unit', 0, unit(BYTES), seconds=9.0)
    assert not len(cache) and len(names(a)) == 3


def test_byte_counts_do_not_wait_for_a_transfer(kv_budget):
    budget, (a, _) = on(kv_budget)
    with ThreadPoolExecutor(1) as thread, a.room(BYTES, 0.0):
        assert thread.submit(lambda: kv_budget.bytes_used).result(60) == BYTES


def test_budget_of_clients_is_in_metrics():
    with (
        running_server(all_capsules_mib=1) as opened,
        opened.client() as first,
        opened.client() as second,
    ):
        for number, client in enumerate((first, second)):
            client.infer(libero() | {'session_id': f'arm-{number}'})
        said = first.infer({'endpoint': 'snapshot', 'session_id': 'arm-0'})
        assert len(said['capsules']) == 1
        size = opened.sessions.values()['capsule bytes']
        pools = {pool.name: pool.bytes_used for pool in opened.engine.kv.budget.stats()}
        assert pools['capsules'] == size and opened.engine.kv.stats().bytes_used >= size
        assert size > 0 and f'embodied_kv_server_capsule_bytes {float(size)}' in page(
            opened.port, '/metrics'
        )
        for n in range(2**20 // size):
            second.infer({'endpoint': 'snapshot', 'session_id': 'arm-1', 'name': f'c{n}'})
        assert opened.sessions.values()['capsules given up'] == 1
        gone = first.infer({'endpoint': 'restore', 'session_id': 'arm-0'})
        assert 'capsule' in gone['error']
        opened.engine.kv.check_integrity()
    assert 'capsules' not in {pool.name for pool in opened.engine.kv.budget.pools}
    assert opened.sessions.values()['capsule bytes'] == 0, (
        'nobody comes back to a server that stopped'
    )
