"""The leave-one-out table: the same missions in every row; a part changes the work it names."""

from dataclasses import fields, replace

import pytest
import torch
from whole_cases import POLICY, SETTINGS, run

from embodied_kv.bench.whole.mind import planning_config
from embodied_kv.bench.whole.process import engine_config
from embodied_kv.bench.whole.settings import load_settings
from embodied_kv.bench.whole.ways import NAMES, WAYS, Parts
from embodied_kv.engine.engine import Engine

RUN = 'all', 'no shared', 'no capsules'  # the others change what the engine is told, below
PART = [field.name for field in fields(Parts)]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    torch.set_num_threads(1)
    return {way: run(way, tmp_path_factory.mktemp('whole')) for way in RUN}


def test_a_row_is_all_parts_or_all_but_one():
    assert WAYS['all'] == Parts() and set(NAMES) == set(PART)
    for name in PART:
        assert WAYS[f'no {name}'] == replace(Parts(), **{name: False})


def test_every_row_has_the_same_missions_killed_at_the_same_moment(runs):
    seen = {
        way: [(m['number'], m['words'], m['needs_memory']) for m in found['missions']]
        for way, found in runs.items()
    }
    assert all(own == seen['all'] for own in seen.values())
    killed = {m['restart']['moment'] for r in runs.values() for m in r['missions'] if m['restart']}
    assert killed == {SETTINGS.killed_at(0)}


def test_every_row_uses_the_engine_for_all_it_has(runs):
    for way in ('all', 'no capsules'):
        found = runs[way]
        assert all(found['units'][kind] for kind in ('chunks', 'frame', 'plans', 'words')), way
        assert found['tokens'] and found['peak'] and found['latencies'] and not found['refused']
        assert set(found['spent']) == set(found['units'])


def test_apart_a_question_takes_longer(runs):
    together, apart = runs['all'], runs['no shared']
    assert apart['units']['words'] / max(1, apart['answers']) > (
        together['units']['words'] / together['answers']
    )
    assert apart['tokens'] / apart['span'] < together['tokens'] / together['span']


def test_without_capsules_none_are_taken_and_a_restart_plans_again(runs):
    for way in ('all', 'no capsules'):
        taken = sum(mission['capsules'] for mission in runs[way]['missions'])
        assert bool(taken) == bool(runs[way]['units']['capsules']) == (way == 'all')
    restarted = [m['restart'] for m in runs['no capsules']['missions'] if m['restart']]
    back = [m['restart'] for m in runs['all']['missions'] if m['restart']]
    assert restarted and len(restarted) == len(back)
    cold, warm = ([r['acting'] for r in own if r['acting']] for own in (restarted, back))
    assert min(warm) < min(cold)  # before that, a plan is made


def test_a_chunk_comes_no_sooner_than_it_is_made(runs):
    for found in runs.values():
        assert all(latency > 0 for latency in found['latencies'])
        assert found['batches'] >= len(found['latencies']) / SETTINGS.batch
        assert sum(found['spent'].values()) < found['span']


def test_two_runs_of_one_clock_are_equal(runs, tmp_path):
    assert run('all', tmp_path) == runs['all']


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
        'compression': {'language_keep_ratio', 'compress_after'},
        'keep': {'method'},
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
