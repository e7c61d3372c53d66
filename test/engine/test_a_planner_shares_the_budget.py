"""A planner's row and loaded memory share one KV budget: a plan gets room or is refused."""

import pytest
from planning_cases import QUESTION, filled, said

from embodied_kv.kv.budget import KvBudget, OverBudgetError


class Pinned:
    """A pool whose bytes cannot be evicted."""

    name = 'capsules'

    def __init__(self, size):
        self.bytes = self.bytes_used = self.bytes_reserved = size

    def evictable(self):
        return []

    def check_integrity(self):
        assert self.bytes


def test_a_plan_under_a_budget_equals_one_without(tmp_path):
    with filled(tmp_path / 'free') as planning:
        expected = [said(planning.plan(QUESTION)) for _ in range(2)]
        most = sum(pool.bytes for pool in planning.pools)
    kv_budget = KvBudget(most - 1)  # next to a full row, not all layers stay loaded
    with filled(tmp_path / 'bound', kv_budget=kv_budget) as planning:
        assert [said(planning.plan(QUESTION)) for _ in range(2)] == expected
        kv_budget.check_integrity()
        assert sum(pool.bytes_reserved for pool in planning.pools) <= kv_budget.capacity
        assert planning.stats().cached_bytes < most - planning.pools[0].bytes
    assert kv_budget.pools == ()


def test_a_plan_without_room_is_refused_and_made_once_there_is(tmp_path):
    with filled(tmp_path / 'free') as planning:
        expected, row = planning.plan(QUESTION), planning.pools[0].bytes
    kv_budget = KvBudget(2 * row)
    with filled(tmp_path / 'bound', kv_budget=kv_budget) as planning:
        kv_budget.join(pinned := Pinned(row + 1))
        with pytest.raises(OverBudgetError, match='planner row: no room for .*capsules'):
            planning.plan(QUESTION)
        kv_budget.leave(pinned)
        assert planning.plan(QUESTION).text == expected.text


def test_what_a_plan_left_gives_way_to_others(tmp_path):
    with filled(tmp_path / 'free') as planning:
        row = planning.pools[0].bytes
    kv_budget = KvBudget(row)
    with filled(tmp_path / 'bound', kv_budget=kv_budget) as planning:
        first = planning.plan(QUESTION)
        assert kv_budget.bytes_used > 0
        kv_budget.join(other := Pinned(0))
        with kv_budget.claim(other, row):
            assert kv_budget.bytes_used == 0
            with pytest.raises(OverBudgetError):
                planning.plan(QUESTION)
        assert planning.plan(QUESTION).text == first.text
