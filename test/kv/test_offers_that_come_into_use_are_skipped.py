"""If all chosen offers have come into use, others are tried before a claim is refused."""

import pytest
from budget_cases import ORDER, TablePool, Thing

from embodied_kv.kv.budget import KvBudget, OverBudgetError


class BusyPool(TablePool):
    """taken: things that come into use before their eviction. looks: calls of `evictable`."""

    def __init__(self):
        super().__init__()
        self.taken, self.in_use, self.looks = [], [], 0

    def evictable(self):
        self.looks += 1
        offers = zip(self.things, super().evictable(), strict=True)
        return [offer for thing, offer in offers if thing not in self.in_use]

    def _evict(self, thing):
        if thing in self.taken:
            self.in_use.append(thing)
            return 0
        return super()._evict(thing)


@pytest.fixture
def pool():
    return BusyPool()


@pytest.fixture
def kv_budget(pool):
    kv_budget = KvBudget(20, ORDER)
    kv_budget.join(pool)
    return kv_budget


def test_another_goes_instead(kv_budget, pool):
    cheap, dear = Thing(10, cost=1.0), Thing(10, cost=2.0)
    pool.add(kv_budget, cheap)
    pool.add(kv_budget, dear)
    pool.taken = [cheap]
    pool.add(kv_budget, new := Thing(10))
    assert pool.gone == [dear] and pool.things == [cheap, new]
    kv_budget.check_integrity()


def test_where_all_are_in_use_it_is_refused(kv_budget, pool):
    pool.taken = [Thing(10), Thing(10)]
    for thing in pool.taken:
        pool.add(kv_budget, thing)
    with pytest.raises(OverBudgetError, match='no room for 10 bytes'):
        pool.add(kv_budget, Thing(10))
    assert not pool.gone and pool.things == pool.taken


def test_who_offers_what_never_goes_is_not_asked_for_ever(kv_budget, pool):
    pool.add(kv_budget, Thing(20))
    pool.end = lambda thing: 0
    with pytest.raises(OverBudgetError):
        pool.add(kv_budget, Thing(10))
    assert pool.looks == 2


def test_what_would_be_too_little_is_looked_at_once(kv_budget, pool):
    pool.add(kv_budget, Thing(20))
    with pytest.raises(OverBudgetError):
        pool.add(kv_budget, Thing(30))
    assert pool.looks == 1 and not pool.gone
