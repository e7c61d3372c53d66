"""A new registry over the same folder has the capsules of the disk, byte for byte."""

import pytest
from tier_stand_ins import OURS, capsule, same, tiers

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities

DEVICE, HOST, DISK = Tier


@pytest.fixture
def restarted(tmp_path):
    return lambda **capacities: Registry(OURS, TierCapacities(**capacities), Disk(tmp_path))


def test_saved_capsules_are_there_again_oldest_first(restarted):
    registry = restarted()
    for i, name in enumerate('cab'):
        registry.add(capsule(name, size=10 + i, created=float(i)), DISK)
    registry.add(capsule('gone'), HOST)
    registry.get('a')
    registry.pin('b')
    registry.close()
    again = restarted()
    again.check_integrity()
    assert [(e.name, e.pinned) for e in again.entries()] == [
        ('c', False),
        ('a', False),
        ('b', False),
    ]
    assert tiers(again) == {'a': 'disk', 'b': 'disk', 'c': 'disk'}
    assert same(again.get('a'), capsule('a', size=11, created=1.0))


def test_capsule_used_after_a_restart_survives_the_next_restart(restarted):
    restarted().add(capsule('a'), DISK)
    restarted().move('a', DEVICE)
    assert same(restarted().get('a'), capsule('a'))


def test_demoted_capsule_survives_a_restart(restarted):
    registry = restarted(device=4, host=4)
    for name in 'abc':
        registry.add(capsule(name))
    assert tiers(registry) == {'a': 'disk', 'b': 'host', 'c': 'device'}
    registry.check_integrity()
    registry.close()
    assert same(restarted().get('a'), capsule('a'))


def test_a_dropped_one_is_gone_for_good(restarted):
    registry = restarted()
    registry.add(capsule('a'), DISK)
    registry.get('a')
    registry.drop('a')
    registry.close()
    assert restarted().entries() == []


def test_a_damaged_file_is_not_listed_and_can_be_dropped(restarted, tmp_path):
    restarted().add(capsule('a'), DISK)
    (file,) = tmp_path.glob('a*')
    file.write_bytes(file.read_bytes()[:20])
    registry = restarted()
    assert registry.entries() == []
    with pytest.raises(CapsuleError, match='truncated'):
        registry.get('a')
    with pytest.raises(CapsuleError, match='there is a capsule a already'):
        registry.add(capsule('a'))
    registry.drop('a')
    assert list(tmp_path.glob('a*')) == []


def test_capsule_whose_file_was_removed_can_be_dropped(restarted, tmp_path):
    registry = restarted()
    registry.add(capsule('a'), DISK)
    Disk(tmp_path).drop('a')
    registry.drop('a')
    assert registry.entries() == []
