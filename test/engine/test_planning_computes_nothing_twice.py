"""KV of memory is computed once; an update invalidates only its segment or its group."""

import pytest
from planning_cases import QUESTION, TABLE, filled, open_planning, said

from embodied_kv.memory.segment import UnitKv

ALL = len(TABLE)


def test_a_second_plan_computes_no_unit(tmp_path):
    with filled(tmp_path) as planning:
        first, second = planning.plan(QUESTION), planning.plan(QUESTION)
        assert (first.fresh, second.fresh) == (ALL, 0)
        assert said(first) == said(second)
        assert planning.stats().fresh == ALL


def test_warming_leaves_nothing_to_a_plan(tmp_path):
    with filled(tmp_path) as planning:
        assert (planning.warm(2), planning.warm(), planning.warm()) == (2, ALL - 2, 0)
        assert planning.plan(QUESTION).fresh == 0


def test_the_same_text_again_changes_nothing(tmp_path):
    with filled(tmp_path) as planning:
        planning.warm()
        assert [c.changed for c in planning.upsert(*TABLE)] == [False] * ALL
        assert planning.plan(QUESTION).fresh == 0


def test_an_update_of_a_dynamic_group_costs_its_segment(tmp_path):
    with filled(tmp_path) as planning:
        planning.warm()
        (change,) = planning.upsert(('robot', 'agent', 'robot: holds the red cube'))
        assert len(change.lost) == 1
        assert planning.stats().kept == ALL - 1
        assert planning.plan(QUESTION).fresh == 1


def test_an_update_of_a_static_group_costs_its_group(tmp_path):
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        assert planning.advance(2) and planning.stats().static == 1
        assert planning.plan(QUESTION).fresh == 1 and planning.stats().kept == 1
        (change,) = planning.upsert(('robot', 'agent', 'robot: holds the red cube'))
        assert len(change.lost) == 1
        stats = planning.stats()
        assert (stats.static, stats.dynamic, stats.kept) == (0, 1, 0)
        assert planning.plan(QUESTION).fresh == ALL


def test_single_segments_keep_their_kv_while_their_group_is_static(tmp_path):
    """So an update of the group drops its joint KV, and only one segment is computed again."""
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        planning.warm()
        planning.advance(2)
        assert planning.warm() == 1 and planning.stats().kept == ALL + 1
        planning.upsert(('robot', 'agent', 'robot: holds the red cube'))
        assert planning.plan(QUESTION).fresh == 1 and planning.stats().kept == ALL


def test_a_group_that_has_just_turned_static_costs_no_plan(tmp_path):
    """The KV of its single segments is used until there is time to compute the joint KV."""
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        planning.warm()
        assert planning.advance(2) and planning.stats().static == 1
        plan = planning.plan(QUESTION)
        assert plan.fresh == 0 and len(plan.segments) == ALL
        assert planning.warm() == 1 and planning.plan(QUESTION).fresh == 0


def test_joint_kv_of_a_group_that_is_no_more_is_dropped(tmp_path):
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        planning.advance(2)
        planning.warm()
        old = planning.memory.units()[0].key
        planning.upsert(('mug', 'object', 'mug: on the red plate'))
        planning.advance(2)  # the mug's group merges into the static one
        assert old not in planning.memory.store
        assert planning.warm() == 1 and planning.stats().kept == 1


def test_a_removed_segment_is_gone_from_plans(tmp_path):
    with filled(tmp_path) as planning:
        planning.warm()
        assert len(planning.remove('green ball').lost) == 1
        plan = planning.plan(QUESTION)
        assert plan.fresh == 0 and 'green ball' not in plan.segments


@pytest.mark.parametrize('method', ['keep', 'full_reuse', 'full'])
def test_a_restart_answers_the_same(tmp_path, method):
    with filled(tmp_path, reuse_method=method) as planning:
        planning.advance(2)
        planning.upsert(('mug', 'object', 'mug: on the red plate'))
        wanted = planning.plan(QUESTION)
    with open_planning(tmp_path, reuse_method=method) as planning:
        plan = planning.plan(QUESTION)
        assert plan.fresh == 0
        assert said(plan) == said(wanted)


def test_tokens_that_lost_their_kv_are_counted_by_the_step(tmp_path):
    with filled(tmp_path) as planning:
        sizes = [planning.memory.groups.tokens(id) for id, _, _ in TABLE]
        planning.advance()
        assert set(planning.stats().invalidated.values()) == {0}, 'what is new costs nothing'
        planning.upsert(('blue bin', 'place', 'blue bin: shut, on the left table'))
        assert planning.stats().invalidated['groups'] == 0, 'the step is not over'
        planning.advance()
        assert planning.stats().invalidated == {'groups': sizes[1]}


def test_kv_that_an_earlier_version_stored_in_part_is_computed_again(tmp_path):
    with filled(tmp_path, reuse_method='full_reuse') as planning:
        wanted, store = said(planning.plan(QUESTION)), planning.memory.store
        unit, *_ = planning.memory.units()
        made = planning.row.compute(unit, planning._prompts.unit(unit))
        parts = (part[:, :, : len(unit.segments)].clone() for part in (made.k, made.v))
        store.forget_kv(unit.key)
        store.store_kv(UnitKv(unit, *parts, (1,) * len(unit.segments)))
        units = planning.stats().kept
    with open_planning(tmp_path, reuse_method='full_reuse') as planning:
        assert planning.stats().kept == units - 1
        plan = planning.plan(QUESTION)
        assert plan.fresh == 1 and said(plan) == wanted
