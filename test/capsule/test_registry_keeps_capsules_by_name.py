"""Names are unique, pins hold, the list is correct, and what does not fit is refused."""

import pytest
import torch
from tier_stand_ins import FOREIGN, OURS, MemoryDisk, capsule, same, tiers

from embodied_kv.capsule import tiers as kinds
from embodied_kv.capsule.capsule import Boundary, CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import NoRoomError, Tier, TierCapacities

DEVICE, HOST, DISK = Tier


def test_list_has_all_fields_of_each_capsule():
    now = [100.0]
    registry = Registry(OURS, disk=MemoryDisk(), clock=lambda: now[0])
    registry.add(capsule('a', size=6, created=90.0), HOST)
    registry.pin('a')
    (entry,) = registry.entries()
    assert (entry.name, entry.bytes, entry.tier, entry.saved) == ('a', 6, HOST, False)
    assert (entry.pinned, entry.age, entry.fits) == (True, 10.0, True)
    assert (entry.boundary, entry.fingerprint) == (Boundary('arm', 3, 5_000), OURS)
    now[0] = 80.0  # the clock was set back
    assert registry.entries()[0].age == 0.0


def test_the_host_counts_what_its_allocations_take(monkeypatch):
    monkeypatch.setattr(kinds, 'held_bytes', lambda size: 1 << (size - 1).bit_length())
    registry = Registry(OURS, TierCapacities(host=15), MemoryDisk())
    registry.add(capsule('a', size=5), HOST)
    assert registry.used(HOST) == 8 and registry.entries()[0].bytes == 5
    registry.add(capsule('b', size=5), HOST)
    assert tiers(registry) == {'a': 'disk', 'b': 'host'} and registry.used(DISK) == 5
    registry.check_integrity()


def test_a_name_in_use_is_refused():
    registry = Registry(OURS)
    registry.add(capsule('a'))
    with pytest.raises(CapsuleError, match='there is a capsule a already: drop it first'):
        registry.add(capsule('a', size=9))
    registry.drop('a')
    registry.add(capsule('a', size=9))
    assert same(registry.get('a'), capsule('a', size=9))


@pytest.mark.parametrize('name', ['', '../a', '/a', '.a', 'a\0', 'a' * 65, 'a/b', 'a\n'])
def test_a_name_that_no_disk_could_hold_is_refused_in_every_tier(name):
    with pytest.raises(CapsuleError, match='cannot name a capsule: use 1 to 64 letters'):
        Registry(OURS).add(capsule(name))


@pytest.mark.parametrize('verb', ['get', 'pin', 'drop'])
def test_an_unknown_name_is_an_error_that_lists_the_known(verb):
    registry = Registry(OURS, disk=MemoryDisk())
    with pytest.raises(CapsuleError, match="no capsule 'x'; there is nothing"):
        getattr(registry, verb)('x')
    registry.add(capsule('a'))
    registry.add(capsule('b'))
    with pytest.raises(CapsuleError, match="no capsule 'x'; there is a, b"):
        getattr(registry, verb)('x')


def test_another_engines_capsule_is_listed_and_dropped_but_never_read():
    disk = MemoryDisk(capsule('theirs', fingerprint=FOREIGN))
    registry = Registry(OURS, disk=disk)
    assert not registry.entries()[0].fits
    for use in (registry.get, lambda name: registry.move(name, DEVICE)):
        with pytest.raises(CapsuleError, match='capsule theirs was made by foreign, this is ours'):
            use('theirs')
    assert disk.loads == 0
    registry.drop('theirs')
    assert registry.entries() == [] and not disk.files
    with pytest.raises(CapsuleError, match='was made by foreign'):
        registry.add(capsule('b', fingerprint=FOREIGN))


def test_pinned_capsule_changes_its_tier_only_by_a_move():
    registry = Registry(OURS, TierCapacities(device=8, policy='drop'), MemoryDisk())
    registry.add(capsule('a'))
    registry.add(capsule('b'))
    registry.pin('a')
    registry.add(capsule('c'))
    assert tiers(registry) == {'a': 'device', 'b': 'host', 'c': 'device'}
    with pytest.raises(CapsuleError, match='capsule a is pinned: unpin it first'):
        registry.drop('a')
    registry.move('a', DISK)
    registry.get('a')
    assert tiers(registry)['a'] == 'disk' and registry.entries()[-1].pinned
    registry.pin('a', pinned=False)
    registry.get('a')
    assert tiers(registry)['a'] == 'host+'
    registry.drop('a')


def test_recently_used_capsule_is_not_evicted():
    registry = Registry(OURS, TierCapacities(device=8, host=0, disk=0, policy='drop'))
    for name in 'ab':
        registry.add(capsule(name))
    registry.get('a')
    registry.add(capsule('c'))
    assert tiers(registry) == {'a': 'device', 'c': 'device'}


@pytest.mark.parametrize('host, lost', [(8, False), (0, True)])
def test_the_log_names_a_capsule_that_is_dropped_for_another_one(caplog, host, lost):
    registry = Registry(OURS, TierCapacities(device=8, host=host, policy='drop'))
    registry.add(capsule('a', size=5))
    registry.add(capsule('b', size=5))
    assert ('capsule a (5 bytes) is dropped for another one' in caplog.text) == lost
    assert ('a' in registry) != lost


def test_refused_operation_changes_nothing():
    registry = Registry(OURS, TierCapacities(device=4, host=4, disk=0))
    registry.add(capsule('a'))
    registry.add(capsule('b'))
    with pytest.raises(NoRoomError, match='a would have to go'):
        registry.add(capsule('c'))
    assert tiers(registry) == {'a': 'host', 'b': 'device'}
    with pytest.raises(NoRoomError, match='no disk tier'):
        registry.move('a', DISK)


def test_capsule_read_from_the_disk_stays_on_the_host_by_default():
    disk = MemoryDisk(*map(capsule, 'abc'))
    registry = Registry(OURS, disk=disk)
    assert same(registry.get('a'), capsule('a'))
    assert same(registry.get('b', promote=DISK), capsule('b'))
    assert same(registry.get('c', promote=DEVICE), capsule('c'))
    assert tiers(registry) == {'a': 'host+', 'b': 'disk', 'c': 'device+'}
    registry.get('a')
    assert disk.loads == 3


def test_reading_a_capsule_evicts_no_other():
    """A read from the disk does not permanently displace another capsule, whatever the policy."""
    disk = MemoryDisk(*map(capsule, 'ab'))
    registry = Registry(OURS, TierCapacities(host=4, disk=8, policy='drop'), disk)
    registry.add(capsule('h'), HOST)
    assert same(registry.get('a'), capsule('a'))
    assert tiers(registry) == {'b': 'disk', 'h': 'host', 'a': 'disk'}


def test_back_to_the_disk_writes_nothing():
    disk = MemoryDisk()
    registry = Registry(OURS, disk=disk)
    registry.add(capsule('a'), DISK)
    registry.move('a', DEVICE)
    assert tiers(registry) == {'a': 'device+'} and registry.used(DISK) == 4
    registry.move('a', HOST)
    registry.move('a', DISK)
    assert tiers(registry) == {'a': 'disk'} and disk.saves == 1
    assert registry.used(HOST) == registry.used(DEVICE) == 0


def test_copy_function_receives_the_device():
    asked = []

    def copy(tensor, device):
        asked.append(device)
        return tensor.to(device)

    registry = Registry(OURS, device='meta', copy=copy)
    registry.add(capsule('a'), HOST)
    registry.move('a', DEVICE)
    assert asked == [torch.device('cpu'), torch.device('meta')]
    assert registry.get('a').tensors['kv/rows'].is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs CUDA')
def test_on_a_gpu_the_host_tier_is_pinned_and_bytes_come_back():
    registry = Registry(OURS, device='cuda', disk=MemoryDisk())
    registry.add(capsule('a', size=1000))
    assert registry.get('a').tensors['kv/rows'].is_cuda
    registry.move('a', HOST)
    tensor = registry.get('a').tensors['kv/rows']
    assert tensor.device.type == 'cpu' and tensor.is_pinned()
    assert same(registry.get('a'), capsule('a', size=1000))
    registry.move('a', DISK)
    assert registry.get('a').tensors['kv/rows'].is_pinned()
    registry.move('a', DEVICE)
    on_device = registry.get('a').tensors['kv/rows']
    assert on_device.is_cuda and torch.equal(on_device.cpu(), tensor)
