"""A stale answer was true before the last update that mattered; old text in view is a fault."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from memory_bench_cases import opened, small

from embodied_kv.bench.memory import tables
from embodied_kv.bench.memory.asking import Asked
from embodied_kv.bench.memory.story import Moment, draw_story
from embodied_kv.bench.memory.ways import Way
from embodied_kv.sim.household import Fact

MOMENT = Moment((), 'Where is the red cube?', 'where', 0, 'on the plate', 'in the bin', {})


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


def replies(way, *stale):
    plan = SimpleNamespace(segments=(), computed=(1,), tokens=1)
    return [
        SimpleNamespace(
            way=way,
            retrieved=4,
            right=not s,
            stale=s,
            outdated=0,
            lost=0,
            fresh=0,
            idle=0,
            plan=plan,
            computed_share=1.0,
        )
        for s in stale
    ]


def test_what_full_recompute_says_too_is_not_held_against_a_way():
    both = [*replies('full', True, False, False), *replies('keep', True, True, False)]
    row = tables.answers(both, 'keep', 4)
    assert (row['stale'], row['stale_beyond_full'], row['n']) == (2, 1, 3)
    assert row['right'] == pytest.approx(100 / 3, abs=0.01)


def test_old_text_in_view_is_counted(tmp_path):
    settings = small(tmp_path)
    facts = (Fact('red cube', 'object', 'red cube: in the bin'),)
    with opened(Way('keep', 'keep'), tmp_path, settings) as planning:
        one = Asked(Way('keep', 'keep'), planning)
        one.learn(facts, settings.speed)
        now = replace(MOMENT, known={'red cube': 'red cube: in the bin'})
        assert one.ask(now, 4, 0, 0).outdated == 0
        moved = replace(MOMENT, known={'red cube': 'red cube: on the plate'})
        assert one.ask(moved, 4, 0, 1).outdated == 1
