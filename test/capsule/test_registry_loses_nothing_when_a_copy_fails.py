"""The source of a copy is released only after the copy, so that a failure loses nothing."""

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule, same, tiers

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities

DEVICE, HOST, DISK = Tier


def out_of_memory(tensor, device):
    raise MemoryError('no memory')


def test_a_full_disk_leaves_it_in_memory():
    disk = MemoryDisk()
    registry = Registry(OURS, disk=disk)
    registry.add(capsule('a'), HOST)
    disk.fail = True
    with pytest.raises(CapsuleError, match='the disk is full'):
        registry.move('a', DISK)
    assert tiers(registry) == {'a': 'host'} and same(registry.get('a'), capsule('a'))


def test_full_memory_leaves_it_on_the_disk():
    registry = Registry(OURS, disk=MemoryDisk(capsule('a')), copy=out_of_memory)
    with pytest.raises(MemoryError):
        registry.move('a', DEVICE)
    assert tiers(registry) == {'a': 'disk'}
    assert same(registry.get('a', promote=DISK), capsule('a'))


def test_capsule_that_cannot_be_evicted_stays_and_the_new_one_is_refused():
    disk = MemoryDisk()
    registry = Registry(OURS, TierCapacities(device=4, host=0), disk)
    registry.add(capsule('a'))
    disk.fail = True
    with pytest.raises(CapsuleError, match='the disk is full'):
        registry.add(capsule('b'))
    assert tiers(registry) == {'a': 'device'}
    registry.add(capsule('b'))  # the next attempt succeeds
    assert tiers(registry) == {'a': 'disk', 'b': 'device'}


def test_damaged_file_evicts_no_capsule():
    class Damaged(MemoryDisk):
        def load(self, name, fingerprint):
            raise CapsuleError('is damaged')

    registry = Registry(
        OURS, TierCapacities(host=4, disk=4, policy='drop'), Damaged(capsule('bad'))
    )
    registry.add(capsule('a'), HOST)
    with pytest.raises(CapsuleError, match='is damaged'):
        registry.move('bad', HOST)
    assert tiers(registry) == {'bad': 'disk', 'a': 'host'}
