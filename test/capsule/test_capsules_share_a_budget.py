"""Capsules on the device share one budget with other pools, and each may be evicted for others."""

import time

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import NoRoomError, Tier, TierCapacities
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.pool import Evictable


@pytest.fixture
def kv_budget():
    return KvBudget(10)


@pytest.fixture
def registry(kv_budget):
    """Return a registry whose own limit exceeds the budget of 10 bytes."""
    registry = Registry(OURS, TierCapacities(device=99, host=8), MemoryDisk())
    DevicePool(registry, kv_budget)
    return registry


def tiers(registry):
    return {entry.name: entry.tier for entry in registry.entries()}


def test_older_capsule_is_demoted_to_the_host_for_a_new_one(registry, kv_budget):
    registry.add(capsule('a', 6))
    registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': Tier.HOST, 'b': Tier.DEVICE}
    assert kv_budget.bytes_used == registry.used(Tier.DEVICE) == 6
    kv_budget.check_integrity()


def test_capsule_that_must_not_be_evicted_blocks_new_ones(registry, kv_budget):
    registry.add(capsule('a', 6))
    registry.pin('a')
    with pytest.raises(NoRoomError, match='capsules: no room for 6 bytes'):
        registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': Tier.DEVICE} and kv_budget.bytes_used == 6
    registry.add(capsule('b', 6), Tier.HOST)  # other tiers have limits of their own
    with pytest.raises(NoRoomError, match='capsules: no room'):
        registry.move('b', Tier.DEVICE)
    registry.pin('a', pinned=False)
    registry.drop('a')
    registry.move('b', Tier.DEVICE)
    assert kv_budget.bytes_used == 6


def test_loaded_capsule_is_promoted_to_the_device_only_if_it_fits(registry, kv_budget):
    registry.add(capsule('a', 6))
    registry.add(capsule('b', 6), Tier.DISK)
    registry.get('b', promote=Tier.DEVICE)
    assert tiers(registry) == {'a': Tier.DEVICE, 'b': Tier.DISK}
    registry.drop('a')
    registry.get('b', promote=Tier.DEVICE)
    assert tiers(registry) == {'b': Tier.DEVICE} and kv_budget.bytes_used == 6


def test_closed_registry_no_longer_counts_in_the_budget(registry, kv_budget):
    registry.add(capsule('a', 6))
    (pool,) = kv_budget.pools
    kv_budget.leave(pool)
    assert kv_budget.bytes_used == 0


def test_name_in_use_is_refused_before_any_eviction(registry):
    registry.add(capsule('a', 4))
    registry.add(capsule('b', 4))
    with pytest.raises(CapsuleError, match='there is a capsule b already'):
        registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': Tier.DEVICE, 'b': Tier.DEVICE}


def test_capsule_on_the_device_claims_no_bytes_for_a_move_there(registry):
    registry.add(capsule('a', 4))
    registry.add(capsule('b', 6))
    registry.move('b', Tier.DEVICE)
    assert tiers(registry) == {'a': Tier.DEVICE, 'b': Tier.DEVICE}


def test_a_capsule_is_idle_from_the_moment_that_it_came(registry, monkeypatch):
    registry.add(capsule('a', 4))
    now = time.monotonic()
    monkeypatch.setattr(time, 'monotonic', lambda: now + 100.0)
    assert registry.idle('a') >= 100.0
    registry.get('a')
    assert registry.idle('a') == 0.0


class Others:
    """A pool of one evictable item that costs `cost` s."""

    name = 'others'

    def __init__(self, size, cost):
        self.bytes = self.bytes_used = self.bytes_reserved = size
        self.cost = cost

    def evictable(self):
        return [Evictable(self.bytes, self.cost, self.end)] if self.bytes else []

    def end(self):
        gone, self.bytes = self.bytes, 0
        self.bytes_used = self.bytes_reserved = 0
        return gone

    def check_integrity(self):
        assert self.bytes >= 0


@pytest.mark.parametrize(('cost', 'goes'), [(2.0, False), (0.5, True)])
def test_a_promotion_ends_only_what_is_worth_no_more(cost, goes):
    order = EvictionOrder(assumed_seconds_per_mib={'capsules': 2**20})  # 1 s per byte
    kv_budget, disk = KvBudget(10, order), MemoryDisk(capsule('a', 6))
    registry = Registry(OURS, TierCapacities(device=99), disk)
    DevicePool(registry, kv_budget)
    kv_budget.join(others := Others(8, cost * 8))
    registry.get('a', promote=Tier.DEVICE)
    assert tiers(registry) == {'a': Tier.DEVICE if goes else Tier.DISK}
    assert others.bytes == (0 if goes else 8)


def test_nothing_is_offered_while_others_are_moved():
    offered = []

    def copy(tensor, device):
        offered.append(pool.evictable())
        return tensor.clone()

    registry = Registry(OURS, TierCapacities(device=99, host=99), copy=copy)
    pool = DevicePool(registry)
    for name in 'ab':
        registry.add(capsule(name))
    offered.clear()
    assert len(pool.evictable()) == 2
    registry.move('a', Tier.HOST)
    assert offered == [[]]
