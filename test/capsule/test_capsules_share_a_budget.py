"""Capsules on the device share one budget: they give way to others, and others to them."""

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule

from embodied_kv.capsule.device_pool import DevicePool
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import NoRoom, Tier, TierCapacities
from embodied_kv.kv.plane import Plane


@pytest.fixture
def plane():
    return Plane(10)


@pytest.fixture
def registry(plane):
    """Whose own bound is above the budget of 10 bytes."""
    registry = Registry(OURS, TierCapacities(device=99, host=8), MemoryDisk())
    DevicePool(registry, plane)
    return registry


def tiers(registry):
    return {entry.name: entry.tier for entry in registry.entries()}


def test_an_older_capsule_goes_to_the_host_for_a_new_one(registry, plane):
    registry.add(capsule('a', 6))
    registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': Tier.HOST, 'b': Tier.DEVICE}
    assert plane.bytes_used == registry.used(Tier.DEVICE) == 6
    plane.check_integrity()


def test_a_capsule_that_may_not_go_keeps_others_out(registry, plane):
    registry.add(capsule('a', 6))
    registry.pin('a')
    with pytest.raises(NoRoom, match='capsules: no room for 6 bytes'):
        registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': Tier.DEVICE} and plane.bytes_used == 6
    registry.add(capsule('b', 6), Tier.HOST)  # other tiers have bounds of their own
    with pytest.raises(NoRoom, match='capsules: no room'):
        registry.move('b', Tier.DEVICE)
    registry.unpin('a')
    registry.drop('a')
    registry.move('b', Tier.DEVICE)
    assert plane.bytes_used == 6


def test_what_is_loaded_comes_to_the_device_only_where_there_is_room(registry, plane):
    registry.add(capsule('a', 6))
    registry.add(capsule('b', 6), Tier.DISK)
    registry.get('b', promote=Tier.DEVICE)
    assert tiers(registry) == {'a': Tier.DEVICE, 'b': Tier.DISK}
    registry.drop('a')
    registry.get('b', promote=Tier.DEVICE)
    assert tiers(registry) == {'b': Tier.DEVICE} and plane.bytes_used == 6


def test_a_registry_that_is_gone_counts_no_more(registry, plane):
    registry.add(capsule('a', 6))
    (pool,) = plane.pools
    plane.leave(pool)
    assert plane.bytes_used == 0
