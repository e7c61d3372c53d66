"""The leave-one-out table aggregates the results of its runs."""

import pytest

from benchmarks.whole import figures
from benchmarks.whole.costs import MIB


def mission(number, success, *restarts):
    return dict(
        number=number, success=success, seconds=10.0, steps=[('put', True)], plans=2, capsules=1,
        computed_shares=[0.5, 1.0], restarts=restarts,
    )  # fmt: skip


def run(way, group, successes, **more):
    return dict(
        way=way,
        group=group,
        missions=[mission(10 * group + i, done) for i, done in enumerate(successes)],
        span=10.0,
        latencies=[0.1] * 99 + [0.9],
        stalls=[0.0] * 3 + [0.2],
        horizons=[4, 6],
        refused=0,
        evicted=0,
        tokens=50,
        answers=10,
        peak=2 * MIB,
        spent=dict(chunks=1.0, words=2.0),
    ) | dict(more)


RUNS = [
    run('no keep', 1, [False, False]),
    run('all', 0, [True, False]),
    run('all', 1, [True, True], peak=3 * MIB, tokens=150, spent=dict(chunks=3.0)),
    run('no keep', 0, [True, False]),
]


def test_a_row_is_of_all_groups_of_its_way():
    whole, other = figures.rows(RUNS)
    assert (whole['way'], whole['n'], whole['success']) == ('all', 4, 0.75)
    assert whole['low'] < 0.75 < whole['high']
    assert (whole['tokens'], whole['peak'], whole['p95']) == (10.0, 2.5, pytest.approx(100.0))
    assert (other['success'], other['peak'], other['to_chunk'], other['restarts']) == (
        0.25, 2.0, None, 0,
    )  # fmt: skip


def test_a_restart_counts_where_it_came_so_far():
    far = dict(moment=5.0, words=[], acting=0.5, chunk=1.5)
    near = dict(moment=5.0, words=[], acting=1.5, chunk=None)
    own = run('all', 0, [])
    own['missions'] = [mission(0, True, far), mission(1, True, near), mission(2, True)]
    (row,) = figures.rows([own])
    assert (row['to_chunk'], row['to_step'], row['restarts']) == (1.5, 1.0, 2)


def test_without_a_chunk_there_is_no_latency(capsys):
    (row,) = figures.rows([mute := run('all', 0, [False], latencies=[], stalls=[], horizons=[])])
    assert row['p95'] is None and figures.work([mute])[0]['horizon'] is None
    figures.show([mute])
    assert 'p95' in capsys.readouterr().out and 'p95 ' not in figures.line(mute)


def test_a_group_is_said_as_its_row():
    said = figures.line(RUNS[1])
    assert said.startswith('group 0, all: n 2, late 0.25, ') and 'peak 2, success 0.5' in said


def test_work_is_of_one_mission():
    whole, _ = figures.work(RUNS)
    assert (whole['chunks_s'], whole['words_s']) == (1.0, 0.5)
    assert (whole['chunks'], whole['horizon'], whole['prompt_computed']) == (50.0, 5.0, 0.75)


def test_differences_are_of_the_same_missions():
    found = {row['column']: row for row in figures.differences(RUNS)}
    assert {row['less'] for row in found.values()} == {'no keep'}
    assert found['success']['difference'] == 0.5
    assert found['success']['low'] < 0.5 < found['success']['high']
    assert figures.differences(RUNS[:1]) == []


def test_a_part_pays_in_a_column_whose_interval_excludes_zero():
    def group(way, number, answers, peak):
        return run(way, number, [True], answers=answers + number % 2, peak=peak)

    ways = ('all', 30, 2 * MIB), ('no keep', 10, 1 * MIB)
    runs = [group(way, n, answers, peak) for n in range(4) for way, answers, peak in ways]
    verdicts = {row['column']: row['verdict'] for row in figures.differences(runs)}
    assert (verdicts['answers'], verdicts['peak'], verdicts['plans']) == ('pays', 'costs', '')
    assert 'to_chunk' not in verdicts  # without a restart


def test_the_interval_of_a_mean_is_that_of_student():
    low, high = figures.interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (high - low) / 2 == pytest.approx(2.5706 * 1.8708 / 6**0.5, rel=0.01)
    low, high = figures.interval([1.0, 2.0, 3.0])
    assert (high - low) / 2 == pytest.approx(4.3027 / 3**0.5, rel=0.04)
    assert figures.interval([1.0, 2.0]) == (None, None)


def test_tables_are_shown(capsys):
    figures.show(RUNS)
    assert 'no keep' in capsys.readouterr().out
