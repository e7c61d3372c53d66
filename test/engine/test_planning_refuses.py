"""Invalid segments, questions and settings are refused with one sentence, and nothing changes."""

from dataclasses import replace

import pytest
import torch
from planning_cases import CONFIG, PLANNER, QUESTION, TABLE, filled, open_planning, said

from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.planning.config import PlanningConfig

LONG = 'a' * 450


@pytest.mark.parametrize(
    ('segments', 'message'),
    [
        ([('mug', 'object', 'a'), ('mug', 'object', 'b')], 'ids of one change must be distinct'),
        ([('mug', 'thing', 'a')], 'must be one of object, place'),
        ([('mug', 'object', ' ')], "text of segment 'mug' must be text"),
        ([('', 'object', 'a')], 'segment id must be text'),
        (
            [('ok', 'object', 'a'), ('mug', 'object', LONG)],
            r'must have at most 400 tokens \(got 451',
        ),
    ],
)
def test_what_is_no_segment(tmp_path, segments, message):
    with filled(tmp_path) as planning:
        before = said(planning.plan(QUESTION))
        with pytest.raises(RobotMemoryError, match=message):
            planning.upsert(*segments)
        assert said(planning.plan(QUESTION)) == before


def test_what_is_not_there(tmp_path):
    with filled(tmp_path) as planning:
        with pytest.raises(RobotMemoryError, match="segment 'mug' does not exist"):
            planning.remove('mug')
        with pytest.raises(RobotMemoryError, match='must be one of object'):
            planning.query('x', kind='thing')
        with pytest.raises(ValueError, match='step must be >= 0'):
            planning.advance(-1)


@pytest.mark.parametrize(
    ('question', 'more', 'message'),
    [
        ('', {}, 'question must not be empty'),
        (' \n', {}, 'question must not be empty'),
        ('a' * 600, {}, 'must fit a row of 512 tokens'),
        (QUESTION, dict(method='magic'), 'method must be one of auto, keep, full, prefix'),
        (QUESTION, dict(tokens=-1), r'must be >= 0 \(got -1 and'),
        (QUESTION, dict(segments=-1), r'must be >= 0 \(got \d+ and -1'),
    ],
)
def test_what_cannot_be_asked(tmp_path, question, more, message):
    with filled(tmp_path) as planning:
        with pytest.raises(ValueError, match=message):
            planning.plan(question, **more)
        assert planning.plan(QUESTION).text


def test_an_empty_memory_has_nothing_in_view(tmp_path):
    with open_planning(tmp_path) as planning:
        plans = [
            planning.plan(QUESTION, method=m) for m in ('keep', 'full', 'prefix', 'full_reuse')
        ]
        assert {plan.text for plan in plans} == {plans[0].text}
        assert all(p.segments == () and p.memory == 0 and p.fresh == 0 for p in plans)
        assert planning.warm() == 0 and planning.query('') == ()


def test_a_budget_bounds_what_is_in_view(tmp_path):
    with filled(tmp_path) as planning:
        assert planning.plan(QUESTION, tokens=0).segments == ()
        assert len(planning.plan(QUESTION, segments=2).segments) == 2
        few = planning.plan(QUESTION, tokens=60)
        assert 0 < few.memory <= 60


def test_a_long_question_leaves_less_room_for_memory(tmp_path):
    with filled(tmp_path) as planning:
        plan = planning.plan('where is ' + 'x' * 350)
        assert plan.tokens + planning.config.max_answer_tokens <= CONFIG.max_tokens
        assert len(plan.segments) < len(TABLE)


def test_kv_of_another_planner(tmp_path):
    other = random_planner(CONFIG, seed=4)
    with filled(tmp_path) as planning:
        planning.warm()
    with pytest.raises(RobotMemoryError, match='must hold KV of the model'):
        open_planning(tmp_path, planner=other)
    with open_planning(tmp_path, planner=other, renew=True) as planning:
        assert planning.stats().kept == 0 and planning.stats().segments == len(TABLE)
        assert planning.plan(QUESTION).fresh == len(TABLE)


def test_a_folder_that_is_open(tmp_path):
    with filled(tmp_path), pytest.raises(RobotMemoryError, match='is in use'):
        open_planning(tmp_path)
    with filled(tmp_path) as planning:
        assert planning.stats().segments == len(TABLE)


def test_a_recurrent_planner(tmp_path):
    class HybridPlanner(torch.nn.Module):
        config = CONFIG

    with pytest.raises(ValueError, match='planner must be a Planner .got HybridPlanner'):
        open_planning(tmp_path, planner=replace(PLANNER, model=HybridPlanner()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('numbers', 'message'),
    [
        (dict(max_context_tokens=510), 'must leave room for a question in a row of 512'),
        (dict(reuse_method='magic'), 'method must be one of'),
        (dict(recompute_ratio=0.1), r'recompute_ratio must be in \[0\.25, 1\]'),
        (dict(max_context_tokens=0), 'max_context_tokens must be >= 1'),
        (dict(min_group_similarity=2.0), 'similarity must be in'),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, numbers, message):
    with pytest.raises(ValueError, match=message):
        open_planning(tmp_path, **numbers)
    with open_planning(tmp_path) as planning:  # the folder was not opened, or was closed again
        assert len(planning.memory) == 0


def test_the_default_numbers_hold_together():
    assert PlanningConfig().grouping.max_tokens <= PlanningConfig().max_context_tokens
