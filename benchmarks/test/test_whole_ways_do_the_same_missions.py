"""Each row of the leave-one-out table has the same missions; a part changes only its own work."""

from dataclasses import fields, replace

import pytest
import torch
from whole_cases import POLICY, SETTINGS, run

from benchmarks.whole.__main__ import PLANNER
from benchmarks.whole.mind import planning_config
from benchmarks.whole.process import engine_config
from benchmarks.whole.settings import load_settings
from benchmarks.whole.ways import WAYS, Parts
from embodied_kv.engine.engine import Engine
from embodied_kv.model.planner_checkpoint import bundled_planner

RUN = 'all', 'no shared', 'no capsules'  # the other ways only change settings, tested below
FOUND: dict[str, dict] = {}
PART = [field.name for field in fields(Parts)]


@pytest.fixture(scope='module', params=RUN)
def one(request, tmp_path_factory):
    """Return a way and the result of a group of missions in it."""
    torch.set_num_threads(1)
    if request.param not in FOUND:
        FOUND[request.param] = run(request.param, tmp_path_factory.mktemp('whole'))
    return request.param, FOUND[request.param]


def test_a_row_is_all_parts_or_all_but_one():
    assert WAYS['all'] == Parts() and len(WAYS) == 1 + len(PART)
    for name in PART:
        assert WAYS[f'no {name}'] == replace(Parts(), **{name: False})


def test_the_planner_that_plans_comes_with_the_package():
    assert bundled_planner(PLANNER).is_dir()


def test_a_group_does_its_missions_with_all_there_is_and_is_killed_once(one):
    way, found = one
    missions, numbers = found['missions'], list(SETTINGS.numbers(0))
    assert [mission['number'] for mission in missions] == numbers
    words = {tuple(m['words'] for m in other['missions']) for other in FOUND.values()}
    assert len(words) == 1  # the same in every way
    restarts = [restart for mission in missions for restart in mission['restarts']]
    assert restarts and {r['moment'] for r in restarts} == {SETTINGS.killed_at(0)}
    assert found['units']['frame'] and found['units']['plans'] and found['units']['words']
    assert found['tokens'] and found['peak']
    assert set(found['spent']) <= set(found['units'])  # a frame without a shared cache is free
    assert sum(found['spent'].values()) < found['span']
    assert all(latency > 0 for latency in found['latencies'])
    taken = sum(mission['capsules'] for mission in missions)
    assert bool(taken) == bool(found['units']['capsules'])
    if way != 'no shared':  # a run without sharing may not get this far
        assert 0 <= found['batches'] - found['units']['chunks'] <= 1  # one may be killed
        assert found['units']['chunks'] and not found['refused']
        assert bool(taken) == (way == 'all')


def test_two_runs_with_the_same_unit_costs_are_equal(tmp_path):
    torch.set_num_threads(1)
    (tmp_path / 'a').mkdir(), (tmp_path / 'b').mkdir()
    short = replace(SETTINGS, robots=1, mission_seconds=1.5)
    assert run('all', tmp_path / 'a', 1, short) == run('all', tmp_path / 'b', 1, short)


@pytest.mark.parametrize('quick', [False, True])
def test_a_part_changes_its_own_settings_alone(quick):
    s = load_settings(quick)
    whole, plans = engine_config(s, Parts()), planning_config(s, Parts())
    changed = {
        name: {
            f.name
            for found, other in (
                (engine_config(s, WAYS[f'no {name}']), whole),
                (planning_config(s, WAYS[f'no {name}']), plans),
            )
            for f in fields(found)
            if getattr(found, f.name) != getattr(other, f.name)
        }
        for name in PART
    }
    assert changed == {
        **dict.fromkeys(PART, set()),
        'compression': {'language_keep_ratio', 'compression_after_tokens'},
        'keep': {'reuse_method'},
    }
    assert s.missions % s.robots == 0 and s.kill[0] < s.kill[1] < s.mission_seconds


def test_kills_and_missions_are_those_of_the_group():
    s = load_settings()
    moments = [s.killed_at(group) for group in range(6)]
    assert len(set(moments)) == 6 and all(s.kill[0] <= m <= s.kill[1] for m in moments)
    numbers = [n for group in range(6) for n in s.numbers(group)]
    assert numbers == list(range(s.first, s.first + 6 * s.robots))


def test_the_engine_has_room_for_what_a_robot_asks():
    s = load_settings()
    engine = Engine(POLICY, engine_config(replace(s, euler_steps=4), Parts()))
    assert engine.kv.language_rows_max >= s.streams
    assert s.rows >= s.batch + 2 * s.robots + s.streams
