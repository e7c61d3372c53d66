"""Branches of a frozen plan continue or answer again in a free row; the robot's plans stay."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from capsule_sessions import begin, capsules_of, go_on
from planning_cases import (
    CONFIG,
    NUMBERS,
    PLANNER,
    QUESTION,
    cut_off,
    filled,
    open_planning,
)

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.prompt import Prompt
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner, random_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.plan import Choice, PlanBranch, PlanRecord, RowPlan
from embodied_kv.planning.planner_row import PlannerRow
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.planning import Planning

OTHER = 'where is the red cube?'
MOST = NUMBERS['max_answer_tokens']
STEP = 'put the blue cube into the blue bin'
AS_IT_IS = PlanBranch()


def rows(count=2):
    return PlannerRows(PLANNER.model, count)


def text(tokens):
    return PLANNER.tokenizer.decode(tokens).strip()


def sampled(seed, question=QUESTION, temperature=2.0):
    return PlanBranch(question, Choice(temperature, seed))


def branched(planning, frozen, *branches):
    return [answer.text for answer in MemoryPart(planning).branch(frozen, branches)]


def state(planning):
    """Return what a fork must leave as it is."""
    row = planning.row
    kv = [part.clone() for part in row.arena.row(0)]
    pools = [pool.bytes_reserved for pool in planning.pools]
    return row.held, planning.last, planning.memory.sentences, pools, row.can_continue, kv


def check_same(planning, before):
    row = planning.row
    *facts, kv = state(planning)
    assert facts == list(before[:-1])
    assert all(torch.equal(a, b) for a, b in zip(kv, before[-1], strict=True))
    row.check_integrity()
    planning._kv_budget.check_integrity()


@pytest.mark.parametrize('method', ['keep', 'full', 'prefix'])
@pytest.mark.parametrize('tokens', [1, 3, MOST])
def test_a_branch_without_a_change_is_the_uninterrupted_answer(tmp_path, method, tokens):
    planning, frozen, last = cut_off(tmp_path, tokens, reuse_method=method, rows=rows())
    with planning:
        before = state(planning)
        assert branched(planning, frozen, AS_IT_IS, AS_IT_IS) == [text(last.answer)] * 2
        check_same(planning, before)


def test_a_continued_branch_computes_the_missing_tokens_only(tmp_path):
    planning, frozen, _ = cut_off(tmp_path / 'one', 3)
    steps = []
    step = lambda work: steps.append(work) or work()  # noqa: E731
    with planning, open_planning(tmp_path / 'two', rows=rows(), step=step) as other:
        branched(other, frozen, AS_IT_IS)
        assert len(steps) == 1 + MOST - 3  # the copy, and a token each


@pytest.mark.parametrize('method', ['keep', 'full'])
def test_the_bundled_planner_answers_other_questions_from_the_copied_memory(tmp_path, method):
    planner = load_planner(bundled_planner('planner_missions'))
    pair, config = PlannerRows(planner.model, 2), PlanningConfig(reuse_method=method)
    asked = {
        'Which table is the red cube on?': 'the left table',
        'Which table is the yellow cube on?': 'the corner table',
        f'mission: {STEP}; part 1': STEP,
    }
    with Planning(planner, tmp_path, config, rows=pair) as planning:
        planning.upsert(
            ('blue bin', 'place', 'blue bin: open, on the left table'),
            ('red bin', 'place', 'red bin: open, on the corner table'),
            ('robot', 'agent', 'robot: holds nothing'),
            ('red cube', 'object', 'red cube: in the blue bin'),
            ('blue cube', 'object', 'blue cube: on the corner table'),
            ('yellow cube', 'object', 'yellow cube: in the red bin'),
        )
        planning.plan('Which table is the blue cube on?')
        frozen = MemoryPart(planning).freeze()
        assert branched(planning, frozen, *map(PlanBranch, asked)) == [*asked.values()]


@pytest.mark.parametrize('method', ['keep', 'full'])
def test_the_same_question_is_answered_again_as_before(tmp_path, method):
    planning, frozen, last = cut_off(tmp_path, 3, reuse_method=method, rows=rows())
    with planning:
        assert branched(planning, frozen, PlanBranch(QUESTION)) == [text(last.answer)]


def test_another_question_equals_a_cold_prefill_of_its_prompt(tmp_path):
    planning, frozen, last = cut_off(tmp_path, 3, reuse_method='full', rows=rows())
    with planning:
        own, other = (planning._prompts.question(question) for question in (QUESTION, OTHER))
        prompt = [*last.prompt[: -len(own)], *other]
        cold = PlannerRow(PLANNER.model, None, PlanningConfig(**NUMBERS), lambda work: work())
        asked = PlanRecord(OTHER, 'full', (), tuple(prompt))
        answer, work = cold.answer(Prompt((), (), prompt), asked, PLANNER.frame.stops)
        assert branched(planning, frozen, PlanBranch(OTHER)) == [text(list(answer))]
        assert min(work.computed) == len(prompt)


def test_only_the_other_question_is_computed(tmp_path, monkeypatch):
    planning, frozen, last = cut_off(tmp_path, 3, rows=rows())
    computed, run = [], PlannerRow._run
    monkeypatch.setattr(
        PlannerRow, '_run', lambda *given: computed.append(found := run(*given)) or found
    )
    with planning:
        own, other = (planning._prompts.question(question) for question in (QUESTION, OTHER))
        alike = next(i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b)
        branched(planning, frozen, PlanBranch(OTHER))
    ((_, work),) = computed
    assert set(work.computed) == {len(other) - alike} and len(last.prompt) > len(other)


def test_equal_seeds_give_equal_answers_alone_and_among_others(tmp_path):
    planning, frozen, last = cut_off(tmp_path, 3, rows=rows())
    with planning:
        said = branched(planning, frozen, *(sampled(seed) for seed in (1, 2, 3, 1)))
        assert said[0] == said[3] and len({*said}) > 1
        assert branched(planning, frozen, sampled(2)) == [said[1]]
        assert branched(planning, frozen, sampled(2, temperature=1e-6)) == [text(last.answer)]
        assert branched(planning, frozen, sampled(5, '')) != branched(planning, frozen, AS_IT_IS)


def test_a_sampled_branch_keeps_what_was_answered_before(tmp_path):
    planning, frozen, last = cut_off(tmp_path, 3, rows=rows())
    plan = PlanRecord(**frozen.facts['row']['plan'])
    held = RowPlan(plan, frozen.facts['row']['tokens'])
    with planning, planning._taken_row() as row:
        put = partial(frozen_kv.fill, frozen, 'row', row.arena, 0)
        said = [row.branch(put, held, (), (), Choice(2.0, seed)) for seed in range(3)]
    assert {tuple(tokens[:3]) for tokens in said} == {last.answer[:3]}
    assert len({tuple(tokens) for tokens in said}) > 1


def test_whether_an_answer_is_complete_is_known(tmp_path):
    planning, frozen, _ = cut_off(tmp_path, 3, rows=rows())
    with planning:
        (cut,) = MemoryPart(planning).branch(frozen, [AS_IT_IS])
        every = frozenset(range(CONFIG.backbone.vocab_size))
        planning._planner = replace(PLANNER, frame=replace(PLANNER.frame, stops=every))
        (ended,) = MemoryPart(planning).branch(frozen, [AS_IT_IS])
    assert ended.whole and not cut.whole


def test_a_plan_and_a_fork_at_the_same_time_are_as_each_alone(tmp_path):
    planning, frozen, last = cut_off(tmp_path / 'one', 2)
    with planning, filled(tmp_path / 'alone') as alone:
        expected = alone.plan(OTHER).text
    with ThreadPoolExecutor(1) as device, ThreadPoolExecutor(2) as clients:
        step = lambda work: device.submit(work).result()  # noqa: E731
        with filled(tmp_path / 'two', rows=rows(), step=step) as two:
            plan = clients.submit(two.plan, OTHER)
            fork = clients.submit(branched, two, frozen, AS_IT_IS, AS_IT_IS)
            assert plan.result(60).text == expected
            assert fork.result(60) == [text(last.answer)] * 2


@pytest.fixture
def case(tmp_path):
    """Yield a planning with a spare row, and a plan frozen after three tokens."""
    budget = KvBudget(1e9)
    planning, frozen, _ = cut_off(tmp_path, 3, rows=rows(), kv_budget=budget)
    with planning:
        yield planning, frozen


def refused(planning, frozen, code, match, *branches):
    before = state(planning)
    with pytest.raises(CapsuleError, match=match) as error:
        MemoryPart(planning).branch(frozen, branches or [AS_IT_IS])
    assert error.value.code == code
    check_same(planning, before)


def test_without_a_free_row_a_fork_is_refused(tmp_path, case):
    _, frozen = case
    with filled(tmp_path / 'two') as two:
        two.plan(OTHER)
        refused(two, frozen, ErrorCode.NO_ROOM, 'set plan_forks of the node memory')


def test_without_room_in_the_budget_nothing_is_evicted(case):
    planning, frozen = case
    budget = planning._kv_budget
    reserved = sum(pool.bytes_reserved for pool in planning.pools)
    budget.capacity = reserved + planning.row.bytes - 1
    refused(planning, frozen, ErrorCode.NO_ROOM, 'no room for')
    assert not budget.evictions and len(budget.pools) == 2
    budget.capacity += 1
    assert len(branched(planning, frozen, AS_IT_IS)) == 1


def test_the_plan_of_another_planner_is_refused(tmp_path, case):
    _, frozen = case
    other = random_planner(CONFIG, seed=8)
    there = PlannerRows(other.model, 2)
    with filled(tmp_path / 'two', planner=other, rows=there) as two:
        refused(two, frozen, ErrorCode.MISMATCH, 'planner must be that of the capsule')


def test_a_capsule_without_a_plan_is_refused(tmp_path, case):
    planning, _ = case
    with filled(tmp_path / 'two') as idle:
        frozen = MemoryPart(idle).freeze()
    refused(planning, frozen, ErrorCode.NOT_FOUND, 'request a plan, and take a new capsule')


def damaged(frozen, **change):
    row = frozen.facts['row']
    return FrozenPart(frozen.tensors, {**frozen.facts, 'row': {**row, **change}})


def test_a_damaged_capsule_is_refused(case):
    planning, frozen = case
    tokens, plan = frozen.facts['row']['tokens'], frozen.facts['row']['plan']
    code = ErrorCode.DAMAGED
    refused(planning, damaged(frozen, tokens=tokens + 2), code, 'damaged plan')
    prompt = [*plan['prompt'][:-1], 0]
    wrong = damaged(frozen, plan={**plan, 'prompt': prompt})
    refused(planning, wrong, code, 'must end with its question', PlanBranch(OTHER))
    half = {name: t for name, t in frozen.tensors.items() if name != 'row/v'}
    refused(planning, FrozenPart(half, frozen.facts), ErrorCode.MISMATCH, 'row/v must be')


@pytest.mark.parametrize(
    'branch, match',
    [
        (PlanBranch('   '), 'question must not be empty'),
        (PlanBranch('where? ' * 300), 'must fit a row of 512 tokens'),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(case, branch, match):
    # All or none: the first branch is not computed either.
    refused(*case, ErrorCode.INVALID_ARGUMENT, match, AS_IT_IS, branch)


def test_a_complete_answer_is_not_sampled_further(tmp_path):
    planning, frozen, last = cut_off(tmp_path, MOST, rows=rows())
    with planning:
        refused(
            planning, frozen, ErrorCode.INVALID_ARGUMENT, 'be incomplete', sampled(1, question='')
        )
        assert branched(planning, frozen, AS_IT_IS) == [text(last.answer)]


def test_another_limit_of_answers_is_refused(tmp_path, case):
    _, frozen = case
    with filled(tmp_path / 'two', rows=rows(), max_answer_tokens=2) as two:
        refused(two, frozen, ErrorCode.MISMATCH, 'max_answer_tokens must be that of the plan')
        assert len(branched(two, frozen, PlanBranch(QUESTION))) == 1


@pytest.mark.parametrize('choice', [dict(seed=-1), dict(seed=2**64), dict(temperature=-0.1)])
def test_an_impossible_choice_is_refused(choice):
    with pytest.raises(ValueError, match='must be'):
        Choice(**choice)


def test_a_fault_during_a_branch_gives_its_row_back(tmp_path, case):
    _, frozen = case
    left = [4]

    def step(work):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError('the device failed')
        return work()

    with filled(tmp_path / 'two', rows=(shared := rows()), step=step) as two:
        with pytest.raises(RuntimeError, match='the device failed'):
            branched(two, frozen, AS_IT_IS)
        shared.check_integrity()
        assert two._kv_budget.pools == (two.row,)
        assert len(branched(two, frozen, AS_IT_IS)) == 1


def test_a_session_forks_the_plan_of_a_capsule_on_disk(make_engine, observe, tmp_path):
    engine = make_engine()
    begin(engine, observe(1))
    session = capsules_of(engine, Registry(fingerprint(engine), disk=Disk(tmp_path / 'capsules')))
    with filled(tmp_path / 'memory', rows=rows()) as planning:
        session.register(part := MemoryPart(planning))
        plan = planning.plan(QUESTION)
        session.snapshot('here', tier=Tier.DISK)
        planning.plan(OTHER)
        before, streams = state(planning), engine.kv.streams.live()
        answers = session.fork_part('here', 'memory', [AS_IT_IS, PlanBranch(OTHER)])
        assert [answer.text for answer in answers][0] == plan.text
        check_same(planning, before)
        assert engine.kv.streams.live() == streams
        with pytest.raises(CapsuleError, match='at least one branch'):
            session.fork_part('here', 'memory', [])
        session.unregister(part)
        with pytest.raises(CapsuleError, match='a node must be active') as error:
            session.fork_part('here', 'memory', [AS_IT_IS])
        assert error.value.code == ErrorCode.UNAVAILABLE
        session.snapshot('without')
        session.register(part)
        with pytest.raises(CapsuleError, match='must have a part memory') as error:
            session.fork_part('without', 'memory', [AS_IT_IS])
        assert error.value.code == ErrorCode.NOT_FOUND
    assert go_on(engine)
