"""A short soak breaks no invariant, reports its work, and repeats it for the same seed."""

import json

import pytest

from benchmarks.common import report
from benchmarks.soak import __main__ as soak
from benchmarks.soak import run
from benchmarks.soak.operations import FRAMES, OTHERS


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Return a function that runs it with arguments and returns its figures and its table."""
    monkeypatch.setattr(report, 'OUT', tmp_path)

    def run(*words):
        soak.main(words)
        *table, line = capsys.readouterr().out.splitlines()
        assert json.loads((tmp_path / 'soak.json').read_text()) == json.loads(line)
        return json.loads(line), table

    return run


def test_a_quick_run_breaks_no_law_and_reports(command):
    found, table = command('--quick')
    assert found['broken'] == {} and found['frames'] == soak.QUICK and table
    outcomes = {row['operation']: row for row in found['operations']}
    assert {*outcomes} <= {operation.name for operation in (*FRAMES, *OTHERS)}
    assert sum(outcomes[o.name]['done'] for o in FRAMES if o.name in outcomes) > soak.QUICK / 2
    assert sum(row['injected'] for row in outcomes.values()) > 0
    assert sum(found['injected'].values()) > 0
    assert [part['frames'] for part in found['parts']] == [
        soak.QUICK * (part + 1) // 10 for part in range(10)
    ]
    both = outcomes['frame']
    assert both['last_over_first'] == pytest.approx(both['last_ms'] / both['first_ms'])
    assert found['resident_growth'] <= 0.02 and found['resident_trimmed_mib'] > 0


def test_the_line_alone_is_printed_where_it_is_asked_for(command):
    _, table = command('--frames', '10', '--json')
    assert table == []


def test_a_run_on_a_hostile_device_breaks_no_law():
    found = run.soak(60, seed=0, failures=20.0, hostile=True)
    assert {*found.ledger.broken} <= {'resident memory'}  # so short a run is all warm-up
    assert found.points[-1].frames == 60 and found.struck['operation'] > 0
