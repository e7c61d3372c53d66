"""The content of the planner's row can be evicted between two plans, but never during one."""

import pytest
from planning_cases import QUESTION, filled, said


def fresh(planning):
    """Make a plan that finds nothing in the row; return the plan and the row."""
    return planning.plan(QUESTION, method='prefix'), planning.pools[0]


def test_a_plan_after_an_eviction_equals_the_first(tmp_path):
    with filled(tmp_path) as planning:
        first, row = fresh(planning)
        again = planning.plan(QUESTION, method='prefix')
        assert again.text == first.text and sum(again.computed) < sum(first.computed)
        (offer,) = row.evictable()
        assert offer.bytes == row.bytes_used and offer.evict() == offer.bytes
        assert (row.bytes_used, offer.evict(), row.evictable()) == (0, 0, [])
        row.check_integrity()
        assert said(planning.plan(QUESTION, method='prefix')) == said(first)
        row.check_integrity()


def test_an_offer_ends_with_what_it_was_made_for(tmp_path):
    with filled(tmp_path) as planning:
        _, row = fresh(planning)
        (old,) = row.evictable()
        planning.plan('where is the red cube?', method='prefix')
        used = row.bytes_used
        assert old.evict() == 0 and row.bytes_used == used > 0


@pytest.mark.parametrize('method', ['keep', 'prefix'])
def test_nothing_goes_within_a_plan(tmp_path, method):
    offers, planning = [], None

    def step(work):
        if planning is not None:
            row = planning.pools[0]
            offers.extend(row.evictable())
            assert all(offer.evict() == 0 for offer in last)
        return work()

    planning, last = filled(tmp_path, step=step), []
    with planning:
        first = planning.plan(QUESTION, method=method)
        last += planning.pools[0].evictable()
        assert planning.plan(QUESTION, method=method).text == first.text
        assert offers == [] and len(last) == 1


def test_it_costs_a_prefill_of_everything_as_last_measured(tmp_path):
    with filled(tmp_path) as planning:
        row = planning.pools[0]
        assert row.evictable() == []
        planning.warm(1)
        (unit,) = row.evictable()
        assert unit.cost == 0  # its KV is stored elsewhere
        plan = planning.plan(QUESTION, method='full')
        (offer,) = row.evictable()
        assert 0 < offer.cost < 2 * plan.seconds
