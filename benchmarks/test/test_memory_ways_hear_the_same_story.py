"""All ways get the same updates and questions, in alternating order, and none affects another."""

from collections import defaultdict
from dataclasses import replace

from memory_bench_cases import small
from rich.progress import Progress

from benchmarks.memory.asking import ask_all, of
from benchmarks.memory.story import draw_story
from benchmarks.memory.ways import BenchPlanning, timed, trace_ways


def ask(monkeypatch, settings):
    heard, turns = defaultdict(list), []

    def listening(name):
        told = getattr(BenchPlanning, name)

        def listen(self, *args, **kwargs):
            heard[self._way.name].append((name, args, tuple(kwargs.items())))
            if name == 'plan':
                turns.append(self._way.name)
            return told(self, *args, **kwargs)

        monkeypatch.setattr(BenchPlanning, name, listen)

    for name in ('upsert', 'advance', 'plan'):
        listening(name)
    ways, side = trace_ways(settings.construction.block), replace(settings.speed, questions=2)
    with Progress(disable=True) as bar:
        replies = ask_all(ways, timed(settings), settings, side, [6], bar, 'asked')
    return ways, heard, turns, replies


def test_they_hear_the_same_in_turn(monkeypatch, tmp_path):
    ways, heard, turns, replies = ask(monkeypatch, small(tmp_path))
    names = [way.name for way in ways]
    assert list(heard) == names
    assert all(told == heard['full'] for told in heard.values())
    assert turns == [*names[::-1], *names, *names[::-1]]
    asked = [(r.story, r.number, r.kind) for r in of(replies, 'keep')]
    assert [number for _, number, _ in asked] == [1, 2]  # the first question was warm-up
    for name in names:
        assert [(r.story, r.number, r.kind) for r in of(replies, name)] == asked


def test_prefix_caching_says_what_full_recompute_says(monkeypatch, tmp_path):
    _, _, _, replies = ask(monkeypatch, small(tmp_path))
    full, prefix = of(replies, 'full'), of(replies, 'prefix')
    assert [r.plan.text for r in full] == [r.plan.text for r in prefix]
    assert sum(sum(r.plan.computed) for r in prefix) < sum(sum(r.plan.computed) for r in full)


def test_a_story_is_its_seed_and_a_longer_one_goes_on(tmp_path):
    world = small(tmp_path).world
    short, long = (draw_story(world, (1, 2), questions) for questions in (2, 4))
    assert (short.first, short.before) == (long.first, long.before)
    assert short.moments == long.moments[:2] and len(long.moments) == 4
    assert draw_story(world, (1, 3), 2).first != short.first
    assert all(len(m.updates) == world.between for m in long.moments)
