"""A group without changes for t steps becomes static; a change makes it dynamic at once.

Transitions are counted and logged.
"""

import logging

import pytest
from meanings import advance, filled, members, towards

from embodied_kv.memory.groups import Grouping, Groups, Transition


def test_alike_segments_share_a_group():
    groups = filled('a1', 'b1', 'a2', 'b2', 'c1')
    assert members(groups) == [('a1', 'a2'), ('b1', 'b2'), ('c1',)]
    assert groups.units() == [('a1',), ('b1',), ('a2',), ('b2',), ('c1',)]


def test_a_group_has_so_many_members_and_tokens():
    assert members(filled('a1', 'a2', 'a3', max_members=2)) == [('a1', 'a2'), ('a3',)]
    assert members(filled('a1', 'a2', 'a3', max_tokens=20)) == [('a1', 'a2'), ('a3',)]
    assert members(filled('a1', 'a2', max_tokens=5)) == [('a1',), ('a2',)]


def test_group_is_static_after_t_steps_and_dynamic_after_the_next_change(caplog):
    caplog.set_level(logging.INFO, 'embodied_kv.memory.groups')
    groups = filled('a1', 'a2', 'b1')
    assert advance(groups, 9) == [] and len(groups.units()) == 3
    made = advance(groups, 1)
    assert made == [Transition(10, 1, True, 2, 20), Transition(10, 2, True, 1, 10)]
    assert groups.units() == [('a1', 'a2'), ('b1',)]
    groups.put('a2', towards('a'), 12, 10)
    assert groups.units() == [('b1',), ('a1',), ('a2',)]
    assert caplog.records[-1].args[0] == Transition(10, 1, False, 2, 22)
    assert advance(groups, 9) == []
    assert advance(groups, 1) == [Transition(20, 1, True, 2, 22)]
    assert groups.counts['static'] == 3 and groups.counts['dynamic'] == 1


def test_a_member_that_keeps_changing_keeps_its_group_dynamic():
    groups = filled('a1', 'a2')
    for step in range(1, 60, 9):
        groups.advance(step)
        groups.put('a1', towards('a'), 10, step)
    assert len(groups.units()) == 2


@pytest.mark.parametrize('steps', [1, 3])
def test_t_is_a_parameter(steps):
    groups = filled('a1', stable_steps=steps)
    assert len(advance(groups, steps - 1)) == 0 and len(advance(groups, 1)) == 1


def test_a_new_segment_never_disturbs_a_static_group():
    groups = filled('a1', 'a2')
    advance(groups, 10)
    groups.put('a3', towards('a'), 10, 10)
    assert groups.units() == [('a1', 'a2'), ('a3',)] and groups.counts['invalidated'] == 0


def test_as_it_turns_static_a_group_merges_into_the_nearest_with_room():
    groups = filled('a1', 'a2', 'b1')
    advance(groups, 10)
    groups.put('a3', towards('a', 0.2), 10, 10)
    (made,) = advance(groups, 10)
    assert made == Transition(20, 3, True, 1, 10, into=1)
    assert groups.units() == [('a1', 'a2', 'a3'), ('b1',)]
    assert groups.counts['merged'] == 1


def test_as_it_turns_static_members_that_drifted_leave_it():
    groups = filled('a1', 'a2', 'a3', 'b1')
    groups.put('a2', towards('c'), 10, 0)
    assert members(groups) == [('a1', 'a2', 'a3'), ('b1',)], 'nothing moves at a change'
    advance(groups, 10)
    assert groups.units() == [('a1', 'a3'), ('b1',), ('a2',)] and groups.counts['left'] == 1


def test_a_member_that_came_home_is_merged_where_it_belongs():
    groups = filled('a1', 'a2', 'b1', 'b2')
    groups.put('a2', towards('b'), 10, 0)
    groups.put('a1', towards('a'), 10, 0)
    advance(groups, 10)
    groups.check_integrity()
    assert {group.static for group in groups} == {True}
    assert ('b1', 'b2', 'a2') not in members(groups), 'two are still alike enough'
    groups.put('a2', towards('b'), 300, 10)
    advance(groups, 10)
    assert members(groups) == [('a1',), ('a2',), ('b1', 'b2')], 'it no longer fits anywhere'


def test_a_removed_member_makes_its_group_dynamic_and_an_empty_group_goes():
    groups = filled('a1', 'a2', 'b1')
    advance(groups, 10)
    assert groups.remove('a1', 10) == 20 and groups.remove('b1', 10) == 10
    assert groups.units() == [('a2',)] and members(groups) == [('a2',)]
    with pytest.raises(LookupError, match='b1'):
        groups.remove('b1', 10)


def test_every_transition_is_logged(caplog):
    caplog.set_level(logging.INFO, 'embodied_kv.memory.groups')
    groups = filled('a1')
    advance(groups, 10)
    groups.put('a1', towards('a'), 10, 10)
    logged = [record.args[0] for record in caplog.records]
    assert logged == [Transition(10, 1, True, 1, 10), Transition(10, 1, False, 1, 10)]


def test_the_same_arrivals_make_the_same_groups():
    ids = [f'{letter}{i}' for i in range(5) for letter in 'abcdefgh']
    one, other = filled(*ids, max_members=3), filled(*ids, max_members=3)
    advance(one, 10), advance(other, 10)
    assert one.units() == other.units()


def test_groups_come_back_as_they_were():
    groups = filled('a1', 'a2', 'b1', 'c1')
    advance(groups, 10)
    groups.put('b1', towards('b'), 7, 10)
    again = Groups(8, groups.grouping)
    for id, changed in (('a1', 0), ('a2', 0), ('b1', 10), ('c1', 0)):
        again.restore(id, groups.vectors[id], groups.tokens(id), changed, groups.of(id).number)
    again.settle(10)
    again.check_integrity()
    assert again.units() == groups.units() and members(again) == members(groups)
    assert again.moved == {} and advance(again, 10) == advance(groups, 10)
    again.put('d1', towards('d'), 1, 20)
    assert again.of('d1').number == 4, 'numbers go on'


def test_a_thousand_arrivals_take_no_time_each():
    groups = Groups(8, Grouping(reach=16))
    for i in range(3000):
        groups.put(f'{i}', towards('abcdefgh'[i % 8], i % 5 / 10), 10, 0)
    advance(groups, 10)
    groups.check_integrity()
    assert all(group.static for group in groups)


def test_bad_input_is_refused():
    groups = filled('a1')
    groups.advance(5)
    with pytest.raises(ValueError, match='step must be >= 5'):
        groups.put('b', towards('b'), 1, 4)
    with pytest.raises(ValueError, match='embedding must be 8 finite numbers'):
        groups.put('b', towards('b')[:4], 1, 5)
    with pytest.raises(ValueError, match="tokens of segment 'b' must be >= 0"):
        groups.put('b', towards('b'), -1, 5)
    with pytest.raises(ValueError, match='steps, bounds and reach must be >= 1'):
        Grouping(stable_steps=0)
    with pytest.raises(ValueError, match='similarity must be in'):
        Grouping(similarity=2)
    groups.check_integrity()
