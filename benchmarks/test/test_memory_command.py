"""The commands of `benchmarks.memory` print tables and one JSON line, and refuse bad settings."""

import json

import pytest
from memory_bench_cases import small, small_file

from benchmarks.common import report
from benchmarks.common.clock import Ceilings
from benchmarks.memory import ablations, floor, timeline, trace
from benchmarks.memory.ways import Way
from embodied_kv.model import planner_checkpoint

PARTS = dict(trace=trace, ablations=ablations, timeline=timeline)
TRACED = ['full', 'prefix', 'full_reuse', 'epic', 'cacheblend', 'keep']
VIEWS = ['full, view of blocks', 'full, view of groups']


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Return a function that runs a part with small numbers.

    It returns the figures, the output and the folder that it wrote to.
    """
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(floor, 'ceilings', lambda: Ceilings(50.0, 10.0))

    def run(part, *arguments):
        PARTS[part].main(['--quick', '--settings', str(small_file(tmp_path)), *arguments])
        out = capsys.readouterr().out
        found = json.loads(out.splitlines()[-1])
        assert json.loads((tmp_path / f'memory_{part}.json').read_text()) == found
        assert found['quick'] and found['settings']['world']['facts'] == 14
        return found, out, tmp_path

    return run


def test_trace_of_three_ways_fills_every_table(command, monkeypatch):
    ways = [Way('full', 'full', 1), Way('cacheblend', 'cacheblend', 3), Way('keep', 'keep')]
    monkeypatch.setattr(trace, 'trace_ways', lambda block: ways)
    monkeypatch.setattr(trace, 'full_view', lambda blocks: 'full')
    found, out, folder = command('trace', '--planner', 'random')
    names = [way.name for way in ways]
    assert [row['way'] for row in found['accuracy']] == [*names, *names]
    assert all(row['n'] == 3 and row['outdated'] == 0 for row in found['accuracy'])
    assert [row['way'] for row in found['seconds']] == [*names, *names]
    assert [row['retrieved'] for row in found['target']] == [4, 9]
    assert 'KEEP beside CacheBlend' in out and (folder / 'memory_trace.png').exists()


@pytest.mark.slow
def test_trace_asks_all_and_times_all(command):
    found, out, folder = command('trace', '--planner', 'random')
    told = [(row['way'], row['retrieved']) for row in found['accuracy']]
    assert told == [(way, n) for n in (4, 9) for way in (*TRACED, *VIEWS)]
    assert all(row['n'] == 3 and row['outdated'] == 0 for row in found['accuracy'])
    assert [row['way'] for row in found['seconds']] == [*TRACED, *TRACED]
    for row in found['seconds']:
        assert row['first_token_ms'] >= row['without_fresh_ms'] > 0 and row['floor_ms'] > 0
    pairs = [(row['first'], row['second'], row['retrieved']) for row in found['differences']]
    assert pairs[:3] == [('keep', 'cacheblend', n) for n in (4, 9, 'all')]
    assert ('keep', 'full, view of groups', 'all') in pairs
    assert [row['retrieved'] for row in found['target']] == [4, 9] and found['paper'] == []
    assert 'KEEP beside CacheBlend' in out and (folder / 'memory_trace.png').exists()


def test_ablations_of_two_ways_fill_every_table(command, monkeypatch):
    ways = [Way('keep', 'keep'), Way('full', 'full', 1)]
    monkeypatch.setattr(ablations, 'variants', lambda settings, layers: ways)
    found, out, folder = command('ablations', '--planner', 'random')
    for table in ('answers', 'seconds'):
        assert [row['way'] for row in found[table]] == ['keep', 'full']
    assert found['answers'][0]['difference'] == 0 and found['seconds'][0]['keep_takes_x'] == 1
    assert 'right answers' in out and (folder / 'memory_ablations.png').exists()


def test_variants_differ_from_keep_in_one_thing_each(tmp_path):
    found = list(ablations.variants(small(tmp_path), 4))
    assert found[0] == Way('keep', 'keep') and len({way.name for way in found}) == len(found)
    for way in found[1:]:
        changed = [way.method != 'keep', way.blocks != 0, way.numbers != {}, not way.rotate]
        assert sum(changed) == 1 or way.method in ('full', 'cacheblend'), way.name
    assert {way.name for way in found if not way.answered} == {
        'keep, separate',
        'keep, next_layer',
    }
    assert {way.name for way in found if not way.timed} == {'keep, keys not turned'}


@pytest.mark.slow
def test_ablations_vary_one_thing_each(command):
    found, out, folder = command('ablations', '--planner', 'random')
    said = [row['way'] for row in found['answers']]
    timed = [row['way'] for row in found['seconds']]
    assert {*timed} - {*said} == {'keep, separate', 'keep, next_layer'}
    assert {*said} - {*timed} == {'keep, keys not turned'}
    sweep = {f'{method}, r {r}' for method in ('keep', 'cacheblend') for r in ('least', 0.5)}
    blocks = {f'{method}, blocks of {n}' for method in ('keep', 'cacheblend') for n in (1, 3, 5)}
    assert sweep | blocks | {'keep, no hops', 'keep, restart 0.5', 'full'} < {*said}
    assert found['answers'][0]['way'] == 'keep' and found['answers'][0]['difference'] == 0
    assert found['seconds'][0]['keep_takes_x'] == 1
    assert 'right answers' in out and (folder / 'memory_ablations.png').exists()


def test_timeline_measures_and_foretells(command):
    found, out, folder = command('timeline')
    sources = list(dict.fromkeys(row['source'] for row in found['rows']))
    assert sources == [
        'host memory',
        'host memory, foretold',
        'files',
        'files, foretold',
        'pinned',
        'pageable',
        'disk',
    ]
    assert [row['policy'] for row in found['rows']][:3] == ['separate', 'next_layer', 'balanced']
    assert 'loads beside computation' in out and (folder / 'memory_timeline.png').exists()


def test_a_planner_that_is_missing_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setattr(planner_checkpoint, 'ASSETS', tmp_path)
    with pytest.raises(ValueError, match="this package has no planner 'planner_missions'"):
        command('trace')
