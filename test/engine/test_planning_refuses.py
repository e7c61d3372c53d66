"""What cannot be remembered or planned is refused in one sentence, and nothing has changed."""

from dataclasses import replace

import pytest
import torch
from planning_cases import CONFIG, PLANNER, QUESTION, TABLE, filled, open_planning, said

from embodied_kv.memory.segment import MemoryFault
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.planning.config import PlanningConfig

LONG = 'a' * 450


@pytest.mark.parametrize(
    ('segments', 'message'),
    [
        ([('mug', 'object', 'a'), ('mug', 'object', 'b')], "'mug' comes twice"),
        ([('mug', 'thing', 'a')], "no kind 'thing'; there are: object, place"),
        ([('mug', 'object', ' ')], "the text of segment 'mug' must be words"),
        ([('', 'object', 'a')], 'a segment id must be words'),
        ([('ok', 'object', 'a'), ('mug', 'object', LONG)], 'has 451 tokens, one may have 400'),
    ],
)
def test_what_is_no_segment(tmp_path, segments, message):
    with filled(tmp_path) as planning:
        before = said(planning.plan(QUESTION))
        with pytest.raises(MemoryFault, match=message):
            planning.upsert(*segments)
        assert said(planning.plan(QUESTION)) == before


def test_what_is_not_there(tmp_path):
    with filled(tmp_path) as planning:
        with pytest.raises(MemoryFault, match="no segment 'mug'"):
            planning.remove('mug')
        with pytest.raises(MemoryFault, match="no kind 'thing'"):
            planning.query('x', kind='thing')
        with pytest.raises(ValueError, match='the world does not go back'):
            planning.advance(-1)


@pytest.mark.parametrize(
    ('question', 'more', 'message'),
    [
        ('', {}, 'there is no question'),
        (' \n', {}, 'there is no question'),
        ('a' * 600, {}, 'do not fit a row of 512: ask in fewer words'),
        (QUESTION, dict(method='magic'), "no method 'magic'; there are: keep, full, prefix"),
        (QUESTION, dict(tokens=-1), 'limits of -1 tokens'),
        (QUESTION, dict(segments=-1), 'and -1 segments cannot be'),
    ],
)
def test_what_cannot_be_asked(tmp_path, question, more, message):
    with filled(tmp_path) as planning:
        with pytest.raises(ValueError, match=message):
            planning.plan(question, **more)
        assert planning.plan(QUESTION).text


def test_an_empty_memory_has_nothing_in_view(tmp_path):
    with open_planning(tmp_path) as planning:
        plans = [planning.plan(QUESTION, method=m) for m in ('keep', 'full', 'cacheblend', 'epic')]
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
        assert plan.tokens + planning.config.answer_tokens <= CONFIG.max_tokens
        assert len(plan.segments) < len(TABLE)


def test_kv_of_another_planner(tmp_path):
    other = random_planner(CONFIG, seed=4)
    with filled(tmp_path) as planning:
        planning.warm()
    with pytest.raises(MemoryFault, match='holds KV of the model'):
        open_planning(tmp_path, planner=other)
    with open_planning(tmp_path, planner=other, renew=True) as planning:
        assert planning.stats().kept == 0 and planning.stats().segments == len(TABLE)
        assert planning.plan(QUESTION).fresh == len(TABLE)


def test_a_folder_that_is_open(tmp_path):
    with filled(tmp_path), pytest.raises(MemoryFault, match='is open already'):
        open_planning(tmp_path)
    with filled(tmp_path) as planning:
        assert planning.stats().segments == len(TABLE)


def test_a_recurrent_planner(tmp_path):
    class HybridPlanner(torch.nn.Module):
        config = CONFIG

    with pytest.raises(ValueError, match='a HybridPlanner cannot plan with memory: it folds all'):
        open_planning(tmp_path, planner=replace(PLANNER, model=HybridPlanner()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('numbers', 'message'),
    [
        (dict(tokens=510), 'leave no room for a question in a row of 512'),
        (dict(method='magic'), "no method 'magic'"),
        (dict(recompute_ratio=0.1), 'a recompute ratio of 0.1: 4 layers reach'),
        (dict(load_policy='magic'), "no policy 'magic'; there are: separate"),
        (dict(recompute_schedule='steep'), "no recompute_schedule 'steep': even"),
        (dict(propagation='magic'), "no propagation 'magic'; there are: directed"),
        (dict(granularity='word'), "no granularity 'word'; there are: token, segment"),
        (dict(tokens=0), 'tokens start at 1'),
        (dict(similarity=2.0), 'similarity 2.0 is no cosine'),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, numbers, message):
    with pytest.raises(ValueError, match=message):
        open_planning(tmp_path, **numbers)
    with open_planning(tmp_path) as planning:  # and the folder was left alone, or closed
        assert len(planning.memory) == 0


def test_the_default_numbers_hold_together():
    assert PlanningConfig().grouping.max_tokens <= PlanningConfig().tokens
