"""After any claims, ends and refusals by any threads, reserved bytes and floors fit the budget."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from budget_cases import ORDER, TablePool, Thing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from embodied_kv.kv.budget import KvBudget, OverBudgetError

BUDGET, FLOOR = 100, 30
THING = st.builds(
    Thing,
    size=st.integers(1, 60),
    cost=st.floats(0, 9),
    idle=st.floats(0, 99),
    consumers=st.sampled_from([(), (), ('language',), ('action',)]),
    quick=st.booleans(),
)


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.kv_budget = KvBudget(BUDGET, ORDER)
        self.pools = [TablePool('frames'), TablePool('streams'), TablePool('known')]
        for pool in self.pools:
            self.kv_budget.join(pool, floor=FLOOR if pool.name == 'frames' else 0)

    @rule(pool=st.integers(0, 2), thing=THING, cost=st.floats(0, 9), wait=st.booleans())
    def claim(self, pool, thing, cost, wait):
        before = self.kv_budget.bytes
        gone = sum(len(pool.gone) for pool in self.pools)
        within = self.pools[pool].name == 'frames' and self.held(0) + thing.size <= FLOOR
        try:
            self.pools[pool].add(self.kv_budget, thing, cost=cost or float('inf'), wait=wait)
        except OverBudgetError as error:
            assert not within and self.pools[pool].name in str(error)
            assert self.kv_budget.bytes == before  # all or nothing
        else:
            assert not within or gone == sum(len(pool.gone) for pool in self.pools)

    @precondition(lambda self: any(pool.things for pool in self.pools))
    @rule(index=st.integers(0, 99))
    def end(self, index):
        things = [(pool, thing) for pool in self.pools for thing in pool.things]
        pool, thing = things[index % len(things)]
        pool.end(thing)

    def held(self, pool):
        return sum(thing.size for thing in self.pools[pool].things)

    @invariant()
    def the_budget_holds(self):
        if hasattr(self, 'kv_budget'):
            self.kv_budget.check_integrity()
            frames, *others = (self.held(pool) for pool in range(3))
            assert max(frames, FLOOR) + sum(others) <= BUDGET
            assert self.kv_budget.bytes_used == frames + sum(others)
            assert not any(t.consumers == ('action',) for pool in self.pools for t in pool.gone)


TestBudget = Machine.TestCase
TestBudget.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_threads_together_never_exceed_it():
    kv_budget, pools = KvBudget(BUDGET, ORDER), [TablePool(str(number)) for number in range(4)]
    for pool in pools:
        kv_budget.join(pool)
    counting, held, most = threading.Lock(), 0, 0  # at most what the pools hold

    def count(size):
        nonlocal held, most
        with counting:
            held += size
            most = max(most, held)

    def work(number):
        own = []
        for turn in range(300):
            with suppress(OverBudgetError):
                own.append(Thing(7 + (turn + number) % 5, consumers=('action',)))
                pools[number].add(kv_budget, own[-1])
                count(own[-1].size)
            for thing in own[turn % 3 :]:
                if thing in pools[number].things:
                    count(-thing.size)
                    pools[number].end(thing)

    with ThreadPoolExecutor(len(pools)) as threads:
        together = [*threads.map(work, range(len(pools)))]  # raises the error of a thread
    assert len(together) == len(pools)
    kv_budget.check_integrity()
    assert 0 < most <= BUDGET


def test_a_claim_ends_with_its_block_whatever_happens():
    kv_budget, pool = KvBudget(10, ORDER), TablePool()
    kv_budget.join(pool)
    with pytest.raises(RuntimeError), kv_budget.claim(pool, 10):
        with pytest.raises(OverBudgetError, match='no room for 1 bytes'), kv_budget.claim(pool, 1):
            pass
        raise RuntimeError
    pool.add(kv_budget, Thing(10))


def test_a_pool_that_leaves_counts_no_more():
    kv_budget, pool, other = KvBudget(10, ORDER), TablePool(), TablePool()
    kv_budget.join(pool)
    pool.add(kv_budget, Thing(8))
    with pytest.raises(OverBudgetError, match='at least 11 bytes'):
        kv_budget.join(other, floor=3)
    kv_budget.leave(pool)
    kv_budget.join(other, floor=3)
    assert kv_budget.pools == (other,) and kv_budget.bytes == 0
