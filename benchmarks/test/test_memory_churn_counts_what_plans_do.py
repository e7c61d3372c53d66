"""Benchmark churn counts the tokens that a plan computes and loads, and predicts its time."""

import json

import pytest
from memory_bench_cases import small_file

from benchmarks.common import report
from benchmarks.memory.churn import Counted, crossovers, main
from benchmarks.memory.settings import load_settings
from benchmarks.memory.timeline import Job
from benchmarks.memory.ways import slowed

JOB = Job((8, 4, 2), {'a': 2, 'b': 2, 'c': 2}, ((), ('c',), ('a',)))


def test_a_plan_takes_its_fresh_tokens_and_its_layers_in_parts_of_a_full_recompute():
    found = Counted(JOB, fresh=2, tokens=8).parts(0.0)
    assert found == pytest.approx(dict.fromkeys(found, (2 * 3 + 14) / 24))
    slow = Counted(JOB, fresh=0, tokens=8).parts(0.5)
    assert slow['separate'] == pytest.approx((14 + 3 * 2 * 0.5) / 24)
    assert slow['balanced'] <= slow['next_layer'] <= slow['separate']


def test_a_crossover_is_where_keep_stays_faster(tmp_path):
    settings = load_settings(small_file(tmp_path), quick=True)
    times = {2: 1.6, 4: 0.9, 8: 1.02, 16: 1.5, 20: 1.7}
    rows = [
        dict(
            updates=u,
            load=load,
            way='cacheblend',
            loads='balanced',
            of_keep_x=x - 0.8 * (load > 0.1),
        )
        for load in settings.churn.loads
        for u, x in times.items()
    ]
    low, high = crossovers(rows, settings)
    assert (low['faster_from'], low['aim_from'], low['most']) == (16, 20, 1.7), 'not at 8'
    assert (high['faster_from'], high['aim_from']) == ('', '')


def test_a_slower_medium_gives_the_same_and_a_free_one_is_left_alone():
    class Kv:
        shape = (1, 1, 1)

    def load(unit, layer):
        return Kv, unit

    assert slowed(load, 0.0) is load
    assert slowed(load, 1e-6)('u', 0) == (Kv, 'u')


def test_the_command_foretells_and_measures(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    main(['--quick', '--measured', '--settings', str(small_file(tmp_path))])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = result['rows']
    assert {(row['updates'], row['load']) for row in rows} == {
        (u, x) for u in (2, 4) for x in (0.1, 0.5)
    }
    assert all(row['of_keep_x'] == 1 for row in rows if row['way'] == 'keep')
    assert all(row['parts'] == 1 for row in rows if row['way'] == 'full')
    assert all(row['fresh'] > 0 for row in rows if row['way'] in ('keep', 'cacheblend, groups'))
    assert len(result['measured']) == 5 and all(row['ms'] > 0 for row in result['measured'])
    assert (tmp_path / 'memory_churn.png').is_file() and result['encoder'] == 'hashing-384'
