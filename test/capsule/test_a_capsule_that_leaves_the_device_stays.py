"""A capsule that is evicted from the device is complete on the host or on the disk."""

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule, same, tiers

from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities


@pytest.fixture
def registry():
    return registry_of(host=6, disk=7)


def registry_of(**capacities):
    disk = MemoryDisk(capacity=capacities.get('disk', 0))
    return Registry(OURS, TierCapacities(**capacities), disk, copy=lambda t, device: t.clone())


def test_evicted_capsule_moves_to_the_host_and_is_copied_back(registry):
    registry.add(capsule('a', 4))
    pool = DevicePool(registry)
    (offer,) = pool.evictable()
    assert (offer.bytes, offer.cost) == (4, 0.0)  # no copy was measured yet
    assert offer.evict() == 4 and pool.bytes == pool.bytes_used == 0
    assert tiers(registry) == {'a': 'host'} and same(registry.get('a'), capsule('a', 4))
    assert offer.evict() == 0 and pool.evictable() == []
    registry.move('a', Tier.DEVICE)
    (offer,) = pool.evictable()
    assert offer.cost == 4 * registry.byte_seconds > 0


def test_capsule_that_would_be_lost_is_not_evicted(registry):
    registry.add(capsule('a', 4))
    registry.add(capsule('b', 7))  # larger than the host
    pool = DevicePool(registry)
    registry.add(capsule('c', 1), Tier.DISK)
    assert [offer.bytes for offer in pool.evictable()] == [4]
    registry.drop('c')
    registry.move('b', Tier.DISK)
    registry.move('b', Tier.DEVICE)
    assert [(offer.bytes, offer.cost) for offer in pool.evictable()] == [(4, 0.0), (7, 0.0)]
    assert [offer.evict() for offer in pool.evictable()] == [4, 7]
    assert tiers(registry) == {'a': 'host', 'b': 'disk'}


def test_an_offer_made_before_the_host_was_full_moves_nothing(registry):
    registry.add(capsule('c', 4), Tier.DISK)
    for name in 'ab':
        registry.add(capsule(name, 4))
    first, second = DevicePool(registry).evictable()
    assert (first.evict(), second.evict()) == (4, 0)
    assert tiers(registry) == {'c': 'disk', 'a': 'host', 'b': 'device'}


def test_capsule_moves_to_the_disk_if_the_host_is_full_and_the_caller_may_wait(registry):
    registry.add(capsule('a', 4), Tier.HOST)
    registry.add(capsule('b', 4))
    (offer,) = DevicePool(registry).evictable()
    assert not offer.quick and offer.evict() == 4
    assert tiers(registry) == {'a': 'host', 'b': 'disk'}


def test_a_file_that_cannot_be_written_frees_nothing(registry):
    registry.add(capsule('a', 7))
    (offer,) = DevicePool(registry).evictable()
    registry._disk.fail = True
    assert offer.evict() == 0
    assert tiers(registry) == {'a': 'device'}


def test_with_drop_what_was_used_least_recently_is_given_up():
    registry = registry_of(host=4, disk=0, policy='drop')
    registry.add(capsule('a', 4), Tier.HOST)
    for name in 'bc':
        registry.add(capsule(name, 4))
    registry.pin('c')
    (offer,) = DevicePool(registry).evictable()
    assert (offer.bytes, offer.cost, offer.quick) == (4, 0.0, True)
    assert (offer.evict(), offer.evict()) == (4, 0)
    assert tiers(registry) == {'b': 'host', 'c': 'device'}


def test_with_refuse_nothing_is_written_or_given_up():
    registry = registry_of(host=4, disk=9, policy='refuse')
    registry.add(capsule('a', 4), Tier.HOST)
    registry.add(capsule('b', 4))
    assert DevicePool(registry).evictable() == []


def test_a_pinned_one_stays(registry):
    registry.add(capsule('a', 4))
    registry.pin('a')
    assert DevicePool(registry).evictable() == []
