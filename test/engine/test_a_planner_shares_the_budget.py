"""A planner's row and loaded memory share one budget: plans find room, or say that none is."""

import pytest
from planning_cases import QUESTION, filled, said

from embodied_kv.kv.plane import OverBudget, Plane


class Pinned:
    """Bytes that nobody gives up."""

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
    plane = Plane(most - 1)  # the row is full in use, so not all layers stay loaded
    with filled(tmp_path / 'bound', plane=plane) as planning:
        assert [said(planning.plan(QUESTION)) for _ in range(2)] == expected
        plane.check_integrity()
        assert sum(pool.bytes_reserved for pool in planning.pools) <= plane.budget
        assert planning.stats().cached_bytes < most - planning.pools[0].bytes
    assert plane.pools == ()


def test_a_plan_without_room_is_refused_and_made_once_there_is(tmp_path):
    with filled(tmp_path / 'free') as planning:
        expected, row = planning.plan(QUESTION), planning.pools[0].bytes
    plane = Plane(2 * row)
    with filled(tmp_path / 'bound', plane=plane) as planning:
        plane.join(pinned := Pinned(row + 1))
        with pytest.raises(OverBudget, match='planner row: no room for .*capsules'):
            planning.plan(QUESTION)
        plane.leave(pinned)
        assert planning.plan(QUESTION).text == expected.text


def test_what_a_plan_left_gives_way_to_others(tmp_path):
    with filled(tmp_path / 'free') as planning:
        row = planning.pools[0].bytes
    plane = Plane(row)
    with filled(tmp_path / 'bound', plane=plane) as planning:
        first = planning.plan(QUESTION)
        assert plane.bytes_used > 0
        plane.join(other := Pinned(0))
        with plane.claim(other, row):
            assert plane.bytes_used == 0
            with pytest.raises(OverBudget):
                planning.plan(QUESTION)
        assert planning.plan(QUESTION).text == first.text
