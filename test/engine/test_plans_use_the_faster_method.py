"""With `auto`, a plan uses KEEP or full recomputation, whichever was measured faster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import QUESTION, filled, open_planning

from embodied_kv.planning.costs import FULL, KEEP, LEAST, NEWEST, PlanCosts

rates = st.floats(1e-6, 1e-2)
lengths = st.integers(1, 4000)


def measured(tokens, full, keep):
    """Return costs measured with prompts of this length, at these rates (s per token)."""
    costs = PlanCosts()
    for method, rate in ((FULL, full), (KEEP, keep)):
        for _ in range(NEWEST):
            costs.add(method, tokens, rate * tokens)
    return costs


@given(tokens=lengths, full=rates, keep=rates)
def test_faster_method_is_chosen(tokens, full, keep):
    costs = measured(tokens, full, keep)
    assert costs.choose(tokens) == (KEEP if keep < full else FULL)
    assert costs.pays(tokens) == (keep < full)


def test_each_method_is_measured_first():
    costs, chosen = PlanCosts(), []
    assert costs.pays(100)
    for _ in range(2 * LEAST):
        chosen.append(costs.choose(100))
        costs.add(chosen[-1], 100, 0.1)
    assert chosen == [FULL] * LEAST + [KEEP] * LEAST


def test_other_lengths_are_measured_again():
    costs = measured(100, full=1e-3, keep=2e-3)
    assert costs.choose(200) == FULL and costs.choose(50) == FULL
    assert costs.seconds(FULL, 201) is None and costs.seconds(KEEP, 49) is None
    assert costs.pays(1000)  # not measured


def test_one_interrupted_plan_changes_nothing():
    costs = measured(100, full=2e-3, keep=1e-3)
    costs.add(KEEP, 100, 60.0)
    assert costs.choose(100) == KEEP


def test_kv_that_is_not_stored_counts():
    costs = measured(100, full=1e-3, keep=0.6e-3)
    assert costs.choose(100, missing=30) == KEEP
    assert costs.choose(100, missing=50) == FULL


def test_other_methods_are_not_measured():
    costs = PlanCosts()
    costs.add('prefix', 100, 0.1)
    assert costs.chosen == {FULL: 0, KEEP: 0} and costs.seconds(FULL, 100) is None


def test_saved_seconds_are_those_of_the_plans_with_keep():
    costs = measured(100, full=2e-3, keep=1e-3)
    assert costs.seconds_saved == pytest.approx(NEWEST * 0.1)
    assert measured(100, full=1e-3, keep=2e-3).seconds_saved < 0


def test_a_plan_uses_the_faster_method_and_stats_report_it(tmp_path):
    with filled(tmp_path, reuse_method='auto') as planning:
        length = planning.plan(QUESTION, method='full').tokens
        planning.costs = measured(length, full=1e-3, keep=1e-9)
        planning.warm()
        assert planning.plan(QUESTION).method == KEEP
        planning.costs = measured(length, full=1e-9, keep=1e-3)
        assert planning.plan(QUESTION).method == FULL
        stats = planning.stats()
    assert stats.chosen == {FULL: NEWEST + 1, KEEP: NEWEST} and stats.seconds_saved < 0


def test_no_kv_is_stored_where_it_does_not_pay(tmp_path):
    with filled(tmp_path, reuse_method='auto') as planning:
        length = sum(planning.memory.groups.tokens(s.id) for s in planning.memory.segments)
        planning.costs = measured(length, full=1e-9, keep=1e-3)
        assert planning.warm() == 0
        planning.costs = measured(length, full=1e-3, keep=1e-9)
        assert planning.warm() > 0


def test_by_default_a_plan_is_computed_in_full_first(tmp_path):
    with open_planning(tmp_path, reuse_method='auto') as planning:
        planning.upsert(('mug', 'object', 'A mug is in the sink.'))
        assert planning.plan(QUESTION).method == FULL
