"""A stale answer was true before the last relevant update; outdated text in view is an error."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from memory_bench_cases import opened, small

from benchmarks.memory import tables
from benchmarks.memory.asking import Asked
from benchmarks.memory.story import Moment, draw_story
from benchmarks.memory.ways import Way
from training.planner.household import Fact

MOMENT = Moment((), 'Where is the red cube?', 'where', 0, 'on the plate', 'in the bin', {})
NOW = replace(MOMENT, known={'red cube': 'red cube: in the bin'})


def test_a_stale_answer_is_the_truth_from_before():
    assert MOMENT.right('on the plate') and not MOMENT.stale('on the plate')
    assert MOMENT.stale('in the bin') and not MOMENT.right('in the bin')
    assert not MOMENT.stale('in the box')
    assert not replace(MOMENT, old=None).stale('in the bin')


def test_a_story_knows_what_was_true_before(tmp_path):
    world = replace(small(tmp_path).world, changed=1.0)
    moments = [m for seed in range(6) for m in draw_story(world, (seed,), 6).moments]
    changed = [m for m in moments if m.old is not None]
    assert len(changed) > len(moments) / 2
    assert all(m.old != m.truth and not m.right(m.old) for m in changed)


def replies(way, *stale, told=(True, True, True)):
    plan = SimpleNamespace(segments=(), computed=(1,), tokens=1)
    return [
        SimpleNamespace(
            way=way,
            retrieved=4,
            right=not s,
            stale=s,
            told=t,
            outdated=0,
            lost=0,
            fresh=0,
            idle=0,
            plan=plan,
            computed_share=1.0,
        )
        for s, t in zip(stale, told, strict=True)
    ]


def test_a_guess_is_not_held_against_a_way():
    some = replies('keep', True, True, False, told=(True, False, True))
    row = tables.answers(some, 'keep', 4)
    assert (row['stale'], row['guessed_stale'], row['told'], row['n']) == (1, 1, 2, 3)
    assert (row['right'], row['told_right']) == (pytest.approx(100 / 3, abs=0.01), 50)


@pytest.fixture
def told(tmp_path):
    """Yield a way that has been given the place of the cube."""
    settings = small(tmp_path)
    with opened(Way('keep', 'keep'), tmp_path, settings) as planning:
        one = Asked(Way('keep', 'keep'), planning)
        one.learn((Fact('red cube', 'object', NOW.known['red cube']),), settings.speed)
        yield one


def test_the_truth_is_in_view_with_all_facts_that_decide_it(told):
    for needs, seen in ((), True), (('red cube',), True), (('red cube', 'bin'), False):
        assert told.ask(replace(NOW, needs=frozenset(needs)), 4, 0, 0).told == seen


def test_old_text_in_view_is_counted(told):
    assert told.ask(NOW, 4, 0, 0).outdated == 0
    moved = replace(MOMENT, known={'red cube': 'red cube: on the plate'})
    assert told.ask(moved, 4, 0, 1).outdated == 1
