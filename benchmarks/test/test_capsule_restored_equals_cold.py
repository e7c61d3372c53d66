"""`benchmarks.capsule` compares equal work and equal bytes, and reports all figures."""

import contextlib
import io
import json

import pytest
import torch

from benchmarks.capsule import figures, measure, planner
from benchmarks.capsule.__main__ import main
from benchmarks.capsule.measure import Plan
from benchmarks.common import report

SMALL = Plan(
    prefixes={64: 1, 128: 2}, context=64, sets=(1, 2, 3), kept=2, rounds=1, actions=1, copied=2,
    rows=('tiny',), segments=(3,), sentences=(10, 1000),
)  # fmt: skip


@pytest.fixture(scope='module')
def found(tmp_path_factory):
    """Return the figures that the command wrote, which are also its last line."""
    if why := measure.no_hybrid():
        pytest.skip(why)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp('bench'))
        patch.setitem(measure.PLANS, 'quick', SMALL)
        patch.setattr(planner, 'FEWEST_VISITS', 2)
        options = '--quick --preset tiny --planner planner_tiny --threads 1 --device cpu'
        main(options.split())
        assert (report.OUT / 'capsule.png').stat().st_size > 0
        written = json.loads((report.OUT / 'capsule.json').read_text())
    assert json.loads(out.getvalue().splitlines()[-1]) == written
    return written


def test_each_prefix_has_its_times(found):
    assert [row['length'] for row in found['prefixes']] == [64, 128]
    for row in found['prefixes']:
        assert 0 < row['low'] <= row['speedup'] <= row['high'] and row['speedup_blocks'] > 0
        for way in ('cold', 'full', 'restored'):
            assert 0 < row[f'{way}_p50_ms'] <= row[f'{way}_p90_ms'] <= row[f'{way}_p99_ms']
        assert 0 < row['append_ms'] < row['restored_p99_ms'] and row['floor_ms'] > 0


def test_copies_move_the_bytes_of_their_capsules(found):
    *prefixes, frame = found['copies']
    assert [row['mb'] for row in prefixes] == [row['capsule_mb'] for row in found['prefixes']]
    for row in (*prefixes, frame):
        assert row['restore_of_copy'] == pytest.approx(row['restore_gbs'] / row['copy_gbs'])
        for name in ('snapshot_of_copy', 'restore_of_copy', 'snapshot_of_clone', 'mb'):
            assert row[name] > 0


def test_a_planners_row_comes_back_or_is_computed(found):
    (row,) = found['planner_rows']
    assert row['segments'] == 3 and row['tokens'] > 3 and row['capsule_mb'] > 0
    assert row['speedup'] == pytest.approx(row['keep_ms'] / row['restored_ms'])


def test_a_snapshot_of_many_sentences_has_its_times(found):
    rows = found['sentences']
    assert [row['sentences'] for row in rows] == [10] * 3 + [1000] * 3
    assert [row['tier'] for row in rows[:3]] == ['device', 'host', 'disk']
    assert rows[3]['mb'] - rows[0]['mb'] > 0.05  # the capsule contains the sentences
    for row in rows:
        assert 0 < row['least_engine_ms'] <= row['engine_ms'] <= row['ms']
        assert 0 < row['least_wait_ms'] <= row['wait_ms'] and row['least_cpu_ms'] > 0


def test_first_tokens_are_measured_alone(monkeypatch, tmp_path, capsys):
    if why := measure.no_hybrid():
        pytest.skip(why)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(measure.PLANS, 'quick', SMALL)
    options = '--quick --preset tiny --planner planner_tiny --threads 1 --device cpu --json'
    main([*options.split(), '--first-token', '64', '128'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row['length'] for row in found['prefixes']] == [64, 128]
    assert 'working_sets' not in found and 'copies' not in found['prefixes'][0]


def test_sentences_are_measured_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(measure.PLANS, 'quick', SMALL)
    main('--quick --preset tiny --threads 1 --device cpu --json --sentences 5'.split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row['sentences'] for row in found['sentences']] == [5] * 3
    assert 'prefixes' not in found and found['machine']['cores'] > 0


def test_a_cycle_that_does_not_fit_never_hits_an_lru(found):
    hits = {
        row['contexts']: [row[f'{s}_hit_pct'] for s in ('pinned', 'pinned_bounded', 'lru')]
        for row in found['working_sets']
    }
    assert hits[1] == hits[2] == [100, 100, 100]
    assert hits[3] == [100, pytest.approx(200 / 3), 0]


def test_bounded_stores_hold_the_same_bytes(found):
    full = found['working_sets'][-1]
    assert full['lru_mb'] == full['pinned_bounded_mb'] == pytest.approx(full['pinned_mb'] * 2 / 3)


def test_action_and_memory_are_reported(found):
    assert found['action']['speedup'] > 0
    assert 0 < found['action']['restored_p50_ms'] <= found['action']['restored_p99_ms']
    memory = found['memory']
    assert memory['at_end']['peak_rss_mb'] >= memory['at_start']['peak_rss_mb'] > 0


@pytest.mark.parametrize('changed', ['a byte', 'a name'])
def test_a_state_that_differs_is_noticed(changed):
    cold = {'fold': torch.zeros(3), 'head': torch.ones(2)}
    state = {name: tensor.clone() for name, tensor in cold.items()}
    if changed == 'a byte':
        state['head'][1] += 1e-6
        problem = 'head differs from that of a cold prefill'
    else:
        del state['fold']
        problem = 'other tensors than those of a cold prefill'
    with pytest.raises(AssertionError, match=problem):
        figures.assert_same(state, cold)


def test_an_older_transformers_costs_the_hybrid_planner_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure.transformers, 'Cache', object)
    monkeypatch.setattr(measure.transformers, '__version__', '5.17.0')
    monkeypatch.setitem(measure.PLANS, 'quick', SMALL)
    main('--quick --preset tiny --threads 1 --device cpu --json'.split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found['no_hybrid'] == 'transformers must be 5.22 or newer for it (got 5.17.0)'
    assert found['prefixes'] == found['working_sets'] == []
    assert found['action']['speedup'] > 0 and [row['of'] for row in found['copies']]
    assert found['planner_rows'][0]['segments'] == 3
