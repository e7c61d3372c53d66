"""Cases of `benchmarks.mission`: histories end in the state of the scene; judgements are right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mission.__main__ import WAYS, product, remembered
from benchmarks.mission.cases import (
    ENDS,
    draw_case,
    is_done,
    needs_memory,
    scene,
    true_table,
    with_history,
)
from embodied_kv.demo.sim.table_memory import read_table
from embodied_kv.demo.sim.tabletop import Tabletop
from training.planner.mission_draws import draw_table


@given(st.integers(0, 10**6), st.integers(0, 12))
def test_a_history_ends_as_the_table_lies(seed, records):
    rng = np.random.default_rng(seed)
    lying = draw_table(rng, 0)
    if any(place not in ('table', *lying.places) for place in lying.where.values()):
        return  # something has fallen off
    known = with_history(rng, lying, records)
    assert known.where == lying.where and known.places == lying.places
    told = read_table(fact.text for fact in known.facts())
    assert dict(told.where) == dict(lying.where)
    for name, number in known.last.items():
        assert known.records[number].task.target == name
        assert lying.where[name] == (known.records[number].task.place or 'table') or (
            known.records[number].task.family == 'take' and lying.where[name] == 'table'
        )


@pytest.fixture(scope='module')
def cases():
    with Tabletop(scene(16)) as table:
        yield [(draw_case(table, n), table.truth()) for n in range(6)]


def test_every_other_mission_needs_memory(cases):
    for case, truth in cases:
        assert case.needs_memory == (case.number % 2 == 1) == needs_memory(case.mission)
        assert case.ends in ENDS and case.words
        assert dict(true_table(truth).where) == dict(case.table.where)


def test_nothing_is_done_before_it_is(cases):
    for case, truth in cases:
        moved = dict(case.after.where) != dict(case.table.where)
        assert not (moved and is_done(case, truth, case.said))
        if not moved and case.after.beside == case.table.beside:
            assert is_done(case, truth, case.said)
            assert not is_done(case, truth, (*case.said, 'and more'))


def test_what_is_remembered_is_all_nothing_or_one_thing_wrong(cases):
    for case, _ in cases:
        assert remembered(case, WAYS['no memory']) == []
        facts = remembered(case, WAYS['memory'])
        assert [fact.text for fact in facts] == [fact.text for fact in case.table.facts()]
        stale = read_table(fact.text for fact in remembered(case, WAYS['stale']))
        wrong = [n for n in stale.where if stale.where[n] != case.table.where[n]]
        assert len(wrong) == 1 and stale.moves == case.table.moves


def test_the_product_is_of_the_rates_of_steps():
    missions = [
        dict(steps=[('put', True), ('take', False)]),
        dict(steps=[('put', False)]),
        dict(steps=[]),
    ]
    assert product(missions) == pytest.approx((0.5 * 0.0 + 0.5 + 1.0) / 3)
