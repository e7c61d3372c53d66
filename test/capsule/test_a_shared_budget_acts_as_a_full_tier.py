"""A shared budget without room evicts capsules as a full device tier does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_stand_ins import FOREIGN, OURS, MemoryDisk, capsule, tiers

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import NoRoomError, Policy, Tier, TierCapacities
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.pool import Evictable

BOUND = st.sampled_from([None, 0, 4, 6, 9, 12])
NAME = st.sampled_from('abcdef')
POLICY = st.sampled_from(get_args(Policy))
STEP = st.one_of(
    st.tuples(st.just('add'), NAME, st.integers(1, 7)),
    st.tuples(st.just('move'), NAME, st.sampled_from(Tier)),
    st.tuples(st.sampled_from(['get', 'pin', 'unpin', 'drop']), NAME, st.none()),
)
STEPS = st.lists(STEP, max_size=30)


def registry_of(capacities, kv_budget=None):
    registry = Registry(OURS, capacities, MemoryDisk())
    DevicePool(registry, kv_budget)
    return registry


def done(registry, verb, name, what):
    """Return whether the operation succeeded; errors other than CapsuleError fail the test."""
    calls = dict(
        add=lambda: registry.add(capsule(name, what)),
        move=lambda: registry.move(name, what),
        get=lambda: registry.get(name, promote=Tier.DISK),
        pin=lambda: registry.pin(name),
        unpin=lambda: registry.pin(name, pinned=False),
        drop=lambda: registry.drop(name),
    )
    try:
        calls[verb]()
    except CapsuleError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(device=BOUND, host=BOUND, disk=BOUND, budget=st.integers(1, 14), policy=POLICY, steps=STEPS)
def test_a_budget_equals_a_device_tier_of_as_many_bytes(device, host, disk, budget, policy, steps):
    """Under 'demote' the budget may keep one more: the oldest cannot move, but a newer one can."""
    least = budget if device is None else min(device, budget)
    bounded = registry_of(TierCapacities(least, host, disk, policy))
    kv_budget = KvBudget(budget)
    shared = registry_of(TierCapacities(device, host, disk, policy), kv_budget)
    for step in steps:
        before = tiers(shared)
        did, expected = done(shared, *step), done(bounded, *step)
        kv_budget.check_integrity()
        assert did or tiers(shared) == before
        if did != expected:
            assert did and policy == 'demote'
            return
        assert tiers(shared) == tiers(bounded)


class Others:
    """A pool of evictable pieces, each of which costs `cost` s per byte."""

    name = 'streams'

    def __init__(self, sizes, cost=1.0):
        self.sizes, self.cost = dict(enumerate(sizes)), cost

    @property
    def bytes(self):
        return sum(self.sizes.values())

    bytes_used = bytes_reserved = bytes

    def evictable(self):
        return [
            Evictable(size, self.cost * size, lambda i=i: self.sizes.pop(i, 0))
            for i, size in self.sizes.items()
        ]

    def check_integrity(self):
        pass


@settings(max_examples=200, deadline=None)
@given(
    host=BOUND,
    disk=BOUND,
    policy=POLICY,
    pieces=st.lists(st.integers(1, 4), max_size=3),
    fixed=st.integers(0, 4),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    pins=st.sets(st.integers(0, 4)),
    cost=st.sampled_from([0.0, 1e-12, 1.0]),
)
def test_other_kv_and_older_capsules_are_evicted_together(
    host, disk, policy, pieces, fixed, sizes, pins, cost
):
    kv_budget = KvBudget(16)
    registry = registry_of(TierCapacities(None, host, disk, policy), kv_budget)
    kv_budget.join(others := Others(pieces, cost))
    pinned = set()
    with ExitStack() as held:
        held.enter_context(kv_budget.claim(others, fixed))
        for number, size in enumerate(sizes):
            before, bytes_before = tiers(registry), others.bytes
            stays = sum(sizes[int(name)] for name in pinned)
            try:
                registry.add(capsule(str(number), size))
            except NoRoomError:
                assert tiers(registry) == before and others.bytes == bytes_before
                assert policy != 'drop' or fixed + stays + size > 16
                continue
            lost = before.keys() - tiers(registry).keys()
            assert not lost & pinned and (not lost or policy == 'drop')
            assert policy != 'refuse' or before.items() <= tiers(registry).items()
            assert registry.used(Tier.DEVICE) + others.bytes + fixed <= 16
            if number in pins:
                registry.pin(str(number))
                pinned.add(str(number))
        assert all(tiers(registry)[name] == 'device' for name in pinned)


def test_snapshots_go_on_where_the_host_is_full():
    registry = registry_of(TierCapacities(device=99, host=8, disk=0, policy='drop'), KvBudget(10))
    for name in 'abcdef':
        registry.add(capsule(name, 3))
    assert tiers(registry) == {name: 'host' for name in 'bc'} | {n: 'device' for n in 'def'}


def test_other_kv_displaces_the_oldest_where_the_policy_drops():
    kv_budget = KvBudget(10)
    registry = registry_of(TierCapacities(host=4, disk=0, policy='drop'), kv_budget)
    kv_budget.join(others := Others([]))
    for name in 'ab':
        registry.add(capsule(name, 4))
    for size in (4, 8):
        with kv_budget.claim(others, size):
            others.sizes[size] = size
        others.sizes.clear()
    assert tiers(registry) == {'b': 'host'}


@pytest.mark.parametrize(
    ('policy', 'says'),
    [
        ('refuse', r"a 6; the policy 'refuse' moves none for another: move one, or set"),
        ('demote', r"a 6; the policy 'demote' loses none: raise the capacity of a tier below"),
    ],
)
def test_a_refusal_names_the_capsules_and_what_to_change(policy, says):
    registry = registry_of(TierCapacities(host=2, disk=0, policy=policy), KvBudget(10))
    registry.add(capsule('a', 6))
    with pytest.raises(NoRoomError, match=rf'capsules 6 bytes.*on the device: {says}'):
        registry.add(capsule('b', 6))
    assert tiers(registry) == {'a': 'device'}


@pytest.mark.parametrize(
    ('newcomer', 'why'),
    [
        (capsule('b', 7), 'larger than the tier'),
        (capsule('b', 4, fingerprint=FOREIGN), 'was made by foreign'),
    ],
)
def test_capsule_larger_than_the_budget_evicts_no_capsule(newcomer, why):
    registry = registry_of(TierCapacities(device=6, host=0, disk=0, policy='drop'), KvBudget(8))
    registry.add(capsule('a', 6))
    with pytest.raises(CapsuleError, match=why):
        registry.add(newcomer)
    assert tiers(registry) == {'a': 'device'}


def test_unreadable_capsule_evicts_no_capsule():
    class Damaged(MemoryDisk):
        def load(self, name, fingerprint):
            raise CapsuleError('damaged')

    registry = Registry(OURS, TierCapacities(host=0, policy='drop', disk=6), Damaged())
    DevicePool(registry, KvBudget(8))
    registry.add(capsule('b', 6), Tier.DISK)
    registry.add(capsule('a', 6))
    with pytest.raises(CapsuleError, match='damaged'):
        registry.move('b', Tier.DEVICE)
    assert tiers(registry) == {'b': 'disk', 'a': 'device'}


def test_promoted_capsule_is_not_evicted_for_itself():
    registry = registry_of(TierCapacities(host=6, disk=0, policy='drop'), KvBudget(8))
    registry.add(capsule('a', 6), Tier.HOST)
    registry.add(capsule('b', 6))
    registry.move('a', Tier.DEVICE)
    assert tiers(registry) == {'a': 'device'}


def test_a_new_capsule_waits_for_what_is_moved_and_is_kept():
    began, go_on = threading.Event(), threading.Event()

    class SlowDisk(MemoryDisk):
        def save(self, saved):
            began.set()
            assert go_on.wait(20)
            super().save(saved)

    registry = Registry(OURS, TierCapacities(host=0, policy='drop'), SlowDisk())
    DevicePool(registry, kv_budget := KvBudget(10))
    for name in 'ab':
        registry.add(capsule(name, 5))
    with ThreadPoolExecutor(2) as threads:
        try:
            moving = threads.submit(registry.move, 'a', Tier.DISK)
            assert began.wait(20)
            adding = threads.submit(registry.add, capsule('c', 5))
        finally:
            go_on.set()
        moving.result(20)
        adding.result(20)
    assert tiers(registry)['c'] == 'device'
    kv_budget.check_integrity()
