"""Listing and reading do not wait for another thread's file; concurrent changes are safe."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from tier_stand_ins import OURS, MemoryDisk, capsule, same, tiers

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities

DEVICE, HOST, DISK = Tier


class SlowDisk(MemoryDisk):
    """A disk on which a started read or write finishes only once `go_on` is set."""

    def __init__(self, *capsules):
        super().__init__(*capsules)
        self.began, self.go_on = threading.Event(), threading.Event()

    def save(self, saved):
        self.began.set()
        assert self.go_on.wait(10)
        super().save(saved)

    def load(self, name, fingerprint):
        self.began.set()
        assert self.go_on.wait(10)
        return super().load(name, fingerprint)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_lists_and_reads_do_not_wait_for_a_file(pool):
    disk = SlowDisk()
    registry = Registry(OURS, disk=disk)
    registry.add(capsule('a'))
    registry.add(capsule('b'))
    moving = pool.submit(registry.move, 'a', DISK)
    try:
        assert disk.began.wait(10)
        assert pool.submit(tiers, registry).result(10) == {'a': 'device', 'b': 'device'}
        assert same(pool.submit(registry.get, 'a').result(10), capsule('a'))
        assert pool.submit(registry.used, DEVICE).result(10) == 8
        pinning = pool.submit(registry.pin, 'a')
        assert not wait([pinning], timeout=0.05).done  # a pin is a change: one at a time
    finally:
        disk.go_on.set()
    moving.result(10)
    pinning.result(10)
    assert tiers(registry) == {'b': 'device', 'a': 'disk'}


def test_loaded_capsule_stays_complete_after_its_name_is_dropped():
    registry = Registry(OURS)
    registry.add(capsule('a'))
    got = registry.get('a')
    registry.drop('a')
    assert same(got, capsule('a'))


def test_two_threads_that_want_the_same_file_read_it_once(pool):
    disk = SlowDisk(capsule('a'))
    registry = Registry(OURS, disk=disk)
    first = pool.submit(registry.get, 'a', DEVICE)
    try:
        assert disk.began.wait(10)
        others = [pool.submit(registry.get, 'a', HOST) for _ in range(3)]
        assert not wait(others, timeout=0.05).done
    finally:
        disk.go_on.set()
    assert all(other.result(10) is first.result(10) for other in others)
    assert disk.loads == 1 and tiers(registry) == {'a': 'device+'}


def test_threads_that_add_list_move_and_drop_at_once_keep_the_laws(pool):
    registry = Registry(OURS, TierCapacities(device=12, host=12), MemoryDisk())
    done = threading.Event()

    def change(worker):
        for i in range(60):
            name = f'{worker}-{i}'
            registry.add(capsule(name))
            registry.get(name)
            registry.move(name, (DEVICE, HOST, DISK)[i % 3])
            assert same(registry.get(name), capsule(name))
            if i % 2:
                registry.drop(name)

    def look():
        looks = 0
        while not done.is_set():
            for entry in registry.entries():
                try:
                    assert same(registry.get(entry.name), capsule(entry.name))
                except CapsuleError as error:  # dropped since it was listed
                    assert 'no capsule' in str(error)
            assert registry.used(DEVICE) <= 12 and registry.used(HOST) <= 12
            looks += 1
        return looks

    looking = pool.submit(look)
    changing = [pool.submit(change, worker) for worker in range(3)]
    try:
        for change_ in changing:
            change_.result(60)
    finally:
        done.set()
    assert looking.result(60) > 0
    registry.check_integrity()
    assert sorted(tiers(registry)) == sorted(f'{w}-{i}' for w in range(3) for i in range(0, 60, 2))
