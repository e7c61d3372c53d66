"""`benchmarks.fleet.remembering`: measured batches, and latencies in relation to all parts."""

import json

import pytest

from benchmarks.common import report
from benchmarks.fleet import remembering
from embodied_kv.engine.engine import Engine


def row(workload, way, average, p95):
    figures = dict(average=average, p95=p95)
    return [dict(workload=workload, share=s, way=way, **figures) for s in remembering.SHARES]


def test_latencies_are_geometric_means_of_ratios():
    rows = []
    for way, times in zip(remembering.WAYS, (1.0, 2.0, 4.0, 1.0), strict=True):
        rows += row('a', way, times, 10 * times) + row('b', way, 5 * times**2, 7.0)
    table = {line['way']: line for line in remembering.overall(rows)}
    assert set(table) == set(remembering.WAYS)
    assert table['all']['average, 1'] == table['all']['p95, 0.5'] == pytest.approx(1.0)
    assert table['no sharing']['average, 1'] == pytest.approx((4 * 16) ** 0.5)
    assert table['no sharing']['p95, 3'] == pytest.approx(2.0)


def test_the_command_measures_and_simulates_each_way(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    remembering.main(['--quick', '--robots', '2'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [line['batch'] for line in found['batches']] == list(remembering.BATCHES)
    assert all(line['largest'] == 2 and line['one_ms'] > 0 for line in found['batches'])
    assert len(found['rows']) == len(remembering.SHARES) * len(remembering.WAYS)
    arrivals = {(line['share'], line['rate']) for line in found['rows']}
    assert len(arrivals) == len(remembering.SHARES)  # the same for every way


def test_without_sharing_earlier_frames_are_encoded_in_each_round(monkeypatch):
    counts, prefill = [], Engine.prefill

    def counted(engine, observations):
        counts.append(len(observations))
        return prefill(engine, observations)

    monkeypatch.setattr(Engine, 'prefill', counted)
    monkeypatch.setattr(remembering, 'BATCHES', ('all',))
    remembering.measured('tiny', 2, 1)
    shared = sum(counts)
    counts.clear()
    monkeypatch.setattr(remembering, 'BATCHES', ('no sharing',))
    remembering.measured('tiny', 2, 1)
    own = remembering.ROWS + 1  # frames that become the memory rows
    assert sum(counts) - own == (1 + remembering.ROWS) * (shared - own)
