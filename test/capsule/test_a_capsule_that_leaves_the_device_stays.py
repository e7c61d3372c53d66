"""A copy on the device that is given up lies on the host, or on the disk, and is whole."""

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule, same, tiers

from embodied_kv.capsule.device_pool import DevicePool
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities


@pytest.fixture
def registry():
    return Registry(OURS, TierCapacities(host=6), MemoryDisk(), copy=lambda t, device: t.clone())


def test_it_goes_to_the_host_and_costs_a_copy_back(registry):
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


def test_what_would_be_lost_stays(registry):
    registry.add(capsule('a', 4))
    registry.add(capsule('b', 7))  # larger than the host
    pool = DevicePool(registry)
    assert [offer.bytes for offer in pool.evictable()] == [4]
    registry.move('b', Tier.DISK)
    registry.move('b', Tier.DEVICE)
    assert [(offer.bytes, offer.cost) for offer in pool.evictable()] == [(4, 0.0), (7, 0.0)]
    assert [offer.evict() for offer in pool.evictable()] == [4, 7]
    assert tiers(registry) == {'a': 'host', 'b': 'disk'}


def test_an_offer_made_before_the_host_was_full_moves_nothing(registry):
    for name in 'ab':
        registry.add(capsule(name, 4))
    first, second = DevicePool(registry).evictable()
    assert (first.evict(), second.evict()) == (4, 0)
    assert tiers(registry) == {'a': 'host', 'b': 'device'}


def test_a_pinned_one_stays(registry):
    registry.add(capsule('a', 4))
    registry.pin('a')
    assert DevicePool(registry).evictable() == []
