"""Benchmark inputs computes its figures from given runs; one short run starts both processes."""

import json
import os

import pytest

from benchmarks.common import report
from benchmarks.inputs import __main__ as inputs
from benchmarks.inputs.rigs import RIGS, Rig, roomy

CPU = {'none': 0.1, 'called': 0.5, 'asked': 0.15}


def test_every_rig_is_measured_and_ways_are_compared(monkeypatch, tmp_path, capsys):
    def given(rig, way, rate, seconds, variables):
        assert (rate, seconds) == (10.0, 3.0)
        return dict(frames=10.0, cpu=CPU[way] if variables else 9.0)

    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(inputs, 'measure', given)
    inputs.main(['--quick'])
    *table, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found == json.loads((tmp_path / 'inputs.json').read_text()) and table
    assert {row['rig'] for row in found['rows']} == set(RIGS)
    assert [row['joint_states'] for row in found['rows'][:3]] == list(CPU)
    assert [row['room'] for row in found['rows']].count(False) == 1
    assert found['joints_called_over_asked'] == pytest.approx(8.0)


@pytest.mark.parametrize('name', RIGS)
def test_a_rig_survives_its_text(name):
    assert Rig.from_json(RIGS[name].to_json()) == RIGS[name]


@pytest.mark.slow
def test_two_processes_make_frames(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(101 + os.getpid() % 100))  # no other test's domain
    found = inputs.measure(RIGS['compressed'], 'asked', 10.0, 1.0, roomy())
    assert found['frames'] > 5 and found['images'] > 30 and 0 < found['cpu'] < 2
    assert found['heard'] == found['warnings'] == 0
