"""After any operations capacities and pins hold, eviction is LRU, and only drops lose capsules.

A model of the expected content is kept next to the registry: which capsules exist, in which
order of use, which tiers they are pinned to, and which are on the disk. The disk and the copies
fail now and then.
"""

from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tier_stand_ins import FOREIGN, OURS, MemoryDisk, capsule, same

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import NoRoomError, Policy, Tier, TierCapacities

DEVICE, HOST, DISK = Tier
NAMES = [*'abcdefgh']
BUDGET = st.sampled_from([None, 0, 4, 6, 9, 12])


class Machine(RuleBasedStateMachine):
    @initialize(
        capacities=st.builds(
            TierCapacities, BUDGET, BUDGET, BUDGET, st.sampled_from(get_args(Policy))
        ),
        foreign=st.booleans(),
    )
    def start(self, capacities, foreign):
        theirs = [capsule('theirs', 3, fingerprint=FOREIGN)] * (
            foreign and capacities.of(DISK) > 3
        )
        self.capacities, self.disk = capacities, MemoryDisk(*theirs, capacity=capacities.of(DISK))
        self.made = {c.name: c for c in theirs}  # expected capsules, least recently used first
        self.saved = {*self.made}  # expected on the disk
        self.pinned = {}  # name: the tiers that it must not leave
        self.time, self.copies_fail = 0.0, False
        self.begin()

    def begin(self):
        self.registry = Registry(OURS, self.capacities, self.disk, copy=self.copy)

    def copy(self, tensor, device):
        """Copy a tensor; the capacities hold during the copy, too."""
        self.check_capacities()
        if self.copies_fail:
            self.copies_fail = False
            raise MemoryError
        return tensor.clone()

    def check_capacities(self):
        assert all(self.registry.used(tier) <= self.capacities.of(tier) for tier in Tier)

    def where(self):
        """Return the tiers of each capsule by name."""
        return {e.name: {e.tier} | ({DISK} if e.saved else set()) for e in self.registry.entries()}

    def use(self, name):
        self.made[name] = self.made.pop(name)

    def kept_in(self, operation, name, size, tier):
        """Run an operation, check the order of eviction, and return whether it succeeded.

        The model is updated with what the policy dropped.
        """
        before = self.where()
        lists = self.listed()
        pinned = set(self.pinned)
        try:
            operation()
        except NoRoomError:
            assert self.listed() == lists
            return False
        except (CapsuleError, MemoryError):
            done = False
        else:
            done = True
        after = self.where()
        fixed = sum(self.made[n].bytes for n in pinned - {name} if tier in before[n])
        room = self.capacities.of(tier) - fixed - size
        others = [n for n in before if tier in before[n] and n not in {name, *pinned}]
        left = [n for n in others if tier not in after.get(n, ()) and self.made[n].bytes <= room]
        stayed = [n for n in others if tier in after.get(n, ())]
        order = list(self.made)
        assert not done or all(order.index(old) < order.index(y) for old in left for y in stayed)
        self.note_lost(after, name)
        return done

    def note_lost(self, after, but=''):
        """Remove from the model what the policy dropped, and update what is on the disk."""
        for gone in set(self.made) - set(after) - {but}:
            assert self.capacities.policy == 'drop' and gone not in self.pinned
            del self.made[gone]
        lost = {n for n in self.saved if DISK not in after.get(n, ())}
        assert not lost or self.capacities.policy == 'drop'
        self.saved = {n for n in after if DISK in after[n]}

    def listed(self):
        return [(e.name, e.tier, e.saved, e.pinned) for e in self.registry.entries()]

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 7), tier=st.sampled_from(Tier))
    def add(self, name, size, tier):
        self.time += 1
        new = capsule(name, size, created=self.time)
        if name in self.made:
            with pytest.raises(CapsuleError, match='already'):
                self.registry.add(new, tier)
        elif self.kept_in(lambda: self.registry.add(new, tier), name, size, tier):
            self.made[name] = new

    @precondition(lambda self: self.made)
    @rule(data=st.data(), promote=st.sampled_from(Tier))
    def get(self, data, promote):
        name = data.draw(st.sampled_from(list(self.made)))
        expected, before = self.made[name], set(self.made)
        self.use(name)
        if expected.fingerprint == FOREIGN:
            with pytest.raises(CapsuleError, match='was made by foreign'):
                self.registry.get(name, promote)
            return
        try:
            assert same(self.registry.get(name, promote), expected)
        except (CapsuleError, MemoryError):  # a copy failed
            pass
        after = self.where()
        assert set(after) == before
        assert {n for n in self.saved if DISK in after[n]} == self.saved
        self.saved = {n for n in after if DISK in after[n]}

    @precondition(lambda self: self.made)
    @rule(data=st.data(), tier=st.sampled_from(Tier))
    def move(self, data, tier):
        name = data.draw(st.sampled_from(list(self.made)))
        there = self.where()[name]
        done = self.kept_in(
            lambda: self.registry.move(name, tier), name, self.made[name].bytes, tier
        )
        assert name in self.made
        if done:
            self.use(name)
            assert self.where()[name] == {tier} | (there & {DISK})
            if name in self.pinned:
                self.pinned[name] = self.where()[name]
        else:
            assert self.where()[name] == there

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def pin(self, data):
        name = data.draw(st.sampled_from(list(self.made)))
        self.registry.pin(name)
        self.pinned[name] = self.where()[name]

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        name = data.draw(st.sampled_from(sorted(self.pinned)))
        self.registry.pin(name, pinned=False)
        del self.pinned[name]

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def drop(self, data):
        name = data.draw(st.sampled_from(list(self.made)))
        if name in self.pinned:
            with pytest.raises(CapsuleError, match='unpin it first'):
                self.registry.drop(name)
        else:
            self.registry.drop(name)
            del self.made[name]
            self.saved.discard(name)

    @rule(data=st.data())
    def leave_the_device(self, data):
        pool, leaving = DevicePool(self.registry), self.registry.device_evictions()
        offers = dict(zip(leaving, pool.evictable(), strict=True))
        if not offers:
            return
        name = data.draw(st.sampled_from(list(offers)))
        used, before = pool.bytes_used, self.where()
        may_fail = self.copies_fail or self.disk.fail
        try:
            freed = offers[name].evict()
        except MemoryError:
            freed = 0
        after = self.where()
        assert freed == used - pool.bytes_used
        assert freed == offers[name].bytes or may_fail
        if freed:
            assert DEVICE not in after.get(name, ()) and name not in self.pinned
            assert offers[name].evict() == 0
        if leaving[name].tier is not None:  # no other capsule moves
            assert before.pop(name) - {DEVICE} <= after.pop(name)
            assert before == after
        self.note_lost(self.where())

    @rule(disk=st.booleans())
    def fail_soon(self, disk):
        self.disk.fail, self.copies_fail = disk, not disk

    @rule()
    def restart(self):
        self.disk.fail = self.copies_fail = False
        self.begin()
        oldest_first = sorted(self.saved, key=lambda name: self.made[name].created)
        self.made = {name: self.made[name] for name in oldest_first}
        self.pinned = {}

    @invariant()
    def laws_hold(self):
        if not hasattr(self, 'registry'):
            return
        self.registry.check_integrity()
        self.check_capacities()
        assert [e.name for e in self.registry.entries()] == list(self.made)
        where = self.where()
        assert {name for name in where if DISK in where[name]} == self.saved == {*self.disk.files}
        assert {e.name for e in self.registry.entries() if e.pinned} == set(self.pinned)
        assert {name: where[name] for name in self.pinned} == self.pinned
        assert all(same(self.disk.files[name], self.made[name]) for name in self.saved)


TestRegistry = Machine.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
