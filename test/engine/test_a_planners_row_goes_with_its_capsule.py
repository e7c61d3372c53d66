"""A plan that is frozen during its answer is continued from its row, token for token.

If the row cannot be restored, or another plan is requested, the plan is computed, with the same
answer.
"""

from dataclasses import replace

import pytest
import torch
from planning_cases import NUMBERS, QUESTION, cut_off, filled, open_planning

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.kv.budget import KvBudget
from embodied_kv.planning.memory_part import MemoryPart

OTHER = 'where is the red cube?'
MOST = NUMBERS['max_answer_tokens']


def resumed(planning, frozen):
    part = MemoryPart(planning)
    part.check_resumable(frozen)
    return part.resume(frozen)()


@pytest.mark.parametrize('method', ['keep', 'full', 'prefix'])
@pytest.mark.parametrize('tokens', [1, 3, MOST])
def test_the_rest_of_an_answer_is_that_of_a_plan_that_was_never_cut_off(tmp_path, method, tokens):
    planning, frozen, last = cut_off(tmp_path / 'one', tokens, reuse_method=method)
    with planning:
        rows = [part.clone() for part in planning.row.arena.row(0)]
    steps = []
    other = open_planning(
        tmp_path / 'one', reuse_method=method, step=lambda w: steps.append(w) or w()
    )
    with other:
        assert resumed(other, frozen) == ''
        plan = other.plan(QUESTION)
        assert other.last == last and set(plan.computed) == {0} == set(plan.loaded)
        assert len(steps) == MOST - tokens
        for mine, theirs in zip(other.row.arena.row(0), rows, strict=True):
            assert torch.equal(mine, theirs)
        other.row.check_integrity()


def test_two_robots_go_on_from_one_capsule_each_by_itself(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    with planning, filled(tmp_path / 'two') as two, filled(tmp_path / 'three') as three:
        for robot in (two, three):
            resumed(robot, frozen)
        two.plan(QUESTION)
        two.plan(OTHER)
        plan = three.plan(QUESTION)
        assert three.last == last and set(plan.computed) == {0}


def test_another_question_is_computed_as_ever(tmp_path):
    planning, frozen, _ = cut_off(tmp_path / 'one', 2)
    with planning, filled(tmp_path / 'two') as two:
        expected = planning.plan(OTHER)
        resumed(two, frozen)
        plan = two.plan(OTHER)
        assert plan.text == expected.text and plan.computed == expected.computed


def test_the_same_question_of_another_memory_is_computed(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    with planning, filled(tmp_path / 'two') as two:
        two.upsert(('robot', 'agent', 'robot: holds the green ball'))
        assert 'memory has changed' in resumed(two, frozen)
        assert min(two.plan(QUESTION).computed) > 0 and two.last.prompt != last.prompt


def test_a_prefix_that_came_back_is_resident(tmp_path):
    planning, frozen, _ = cut_off(tmp_path / 'one', MOST, reuse_method='prefix')
    with planning, filled(tmp_path / 'two', reuse_method='prefix') as two:
        expected = planning.plan(OTHER)
        resumed(two, frozen)
        plan = two.plan(OTHER)
        assert (plan.text, plan.computed) == (expected.text, expected.computed)
        assert max(plan.computed) < plan.tokens


def test_what_came_back_and_went_is_computed_again(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    with planning, filled(tmp_path / 'two') as two:
        resumed(two, frozen)
        (offer,) = two.row.evictable()
        assert offer.evict() == offer.bytes and two.row.held is None
        assert min(two.plan(QUESTION).computed) > 0 and two.last == last


def test_a_row_in_use_stays_its_plans(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    said = []

    def step(work):
        result = work()
        if two is not None and two.row.held and not said:
            said.append(resumed(two, frozen))
        return result

    two = None
    two = filled(tmp_path / 'two', step=step)
    with planning, two:
        expected = planning.plan(OTHER)
        assert two.plan(OTHER).text == expected.text
        assert said[0] == "the planner's row is in use: the next plan computes it again"
        assert two.plan(QUESTION) and two.last == last


def test_without_room_the_next_plan_computes(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    kv_budget = KvBudget(planning.row.bytes)
    with planning, filled(tmp_path / 'two', kv_budget=kv_budget) as two:
        with kv_budget.claim(two.pools[1], kv_budget.capacity - 1):
            assert 'row has no room: the next plan computes it again' in resumed(two, frozen)
            assert two.row.held is None
        assert min(two.plan(QUESTION).computed) > 0 and two.last == last
        kv_budget.check_integrity()


@pytest.mark.parametrize(
    ('said', 'most', 'goes_on'),
    [(2, 3, True), (3, 3, False), (4, 3, False), (MOST, MOST, True), (MOST, MOST + 1, False)],
)
def test_an_answer_that_is_longer_or_shorter_than_here_is_computed(tmp_path, said, most, goes_on):
    planning, frozen, last = cut_off(tmp_path / 'one', said)
    with planning, filled(tmp_path / 'two', max_answer_tokens=most) as two:
        resumed(two, frozen)
        computed = two.plan(QUESTION).computed
        assert (max(computed) == 0) == goes_on
        assert two.last.answer[:MOST] == last.answer[:most] and len(two.last.answer) == most


def test_a_copy_that_fails_leaves_a_row_of_no_plan(tmp_path):
    def put():
        planning.row.arena.k.zero_()
        raise RuntimeError('no copy')

    with filled(tmp_path, reuse_method='prefix') as planning:
        planning.plan(QUESTION)
        last, held = planning.last, planning.row.held
        (offer,) = planning.row.evictable()
        with pytest.raises(RuntimeError, match='no copy'):
            planning.row.resume(put, held)
        assert planning.row.held is None and offer.evict() == 0
        planning.row.check_integrity()
        assert min(planning.plan(QUESTION).computed) > 0 and planning.last == last


def test_an_unknown_method_leaves_the_row_as_it_is(tmp_path):
    with filled(tmp_path) as planning:
        planning.plan(QUESTION)
        held = planning.row.held
        other = replace(held, plan=replace(held.plan, method='magic'))
        with pytest.raises(ValueError, match='method must be one of'):
            planning.row.resume(lambda: pytest.fail('it was put'), other)
        assert planning.row.held == held


def test_what_came_back_is_worth_what_it_would_cost_and_was_used_just_now(tmp_path):
    planning, frozen, _ = cut_off(tmp_path / 'one', 3)
    with planning, filled(tmp_path / 'two') as two:
        two.plan(OTHER, method='full')
        two.row._used_at -= 1_000_000  # long ago
        resumed(two, frozen)
        (offer,) = two.row.evictable()
        assert offer.cost > 0 and offer.idle < 1_000_000


@pytest.mark.parametrize('kind', ['k', 'v'])
def test_half_a_row_is_refused(tmp_path, kind):
    planning, frozen, _ = cut_off(tmp_path / 'one', 2)
    with planning:
        part = MemoryPart(planning)
        half = {name: t for name, t in frozen.tensors.items() if not name.endswith(kind)}
        with pytest.raises(CapsuleError, match='row/. must be .*got nothing'):
            part.check_resumable(FrozenPart(half, frozen.facts))
        known = {'sentences': frozen.tensors['sentences']}
        rows = ((name, t) for name, t in frozen.tensors.items() if name not in known)
        shorter = known | {name: t[:, :, 1:] for name, t in rows}
        with pytest.raises(CapsuleError, match='row/k must be'):
            part.check_resumable(FrozenPart(shorter, frozen.facts))
