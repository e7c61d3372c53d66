"""Benchmark fleet.serving, the whole of it: two processes, ROS between node and robots."""

import json
import os
import shutil
import sys

import pytest

from embodied_kv.bench.fleet.serving import __main__ as serving
from embodied_kv.bench.fleet.serving import measure
from embodied_kv.fleet import trace
from embodied_kv.sim.tasks import FAMILIES
from embodied_kv.train.evaluate import worlds

PROFILE = """engine: given
sizes: [1, 2]
seconds: [0.05, 0.06]
chunk_bytes: 320
"""


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 1.2))
    monkeypatch.setattr(serving, 'QUICK_TASKS', 2)
    ways = {name: measure.WAYS[name] for name in measure.ALONE}
    monkeypatch.setattr(measure, 'WAYS', ways)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('ROS_DOMAIN_ID', str(101 + os.getpid() % 100))  # no other test's
    (tmp_path / 'profile.yaml').write_text(PROFILE)


def test_the_last_line_is_every_figure(small, capsys):
    serving.main(
        '--quick --robots 2 --checkpoint random --profile profile.yaml --trace trace.jsonl '
        '--json'.split()
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    sizes = [(row['robots'], row['tasks']) for row in found['rows']]
    assert sizes == [(1, 2), (1, 2), (2, 2), (2, 2)]
    assert found['engine']['computed_over_charged'] > 0
    for row in found['rows']:
        assert 0 < row['p25'] <= row['average'] <= row['p95'] <= 1.2 + 1e-9
        assert row['rounds'] >= 2 and row['decision']['median'] > 0
    assert {pair['robots'] for pair in found['pairs']} == {1, 2}
    assert trace.jobs(*trace.read('trace.jsonl'))


def test_a_fleet_that_cannot_be_run_says_so(small, monkeypatch):
    monkeypatch.setattr(sys, 'executable', shutil.which('false'))
    with pytest.raises(RuntimeError, match='the fleet ended with 1, .* is ROS 2 sourced'):
        serving.main(
            '--quick --robots 2 --checkpoint random --profile profile.yaml --json'.split()
        )


@pytest.mark.parametrize(
    ('arguments', 'reason'),
    [
        ('--robots 0', '--robots are at least 1'),
        ('--checkpoint nowhere.safetensors', 'nowhere.safetensors does not exist'),
        ('--checkpoint random --profile nowhere.yaml', 'nowhere.yaml'),
    ],
)
def test_bad_arguments_are_refused(small, capsys, arguments, reason):
    with pytest.raises(SystemExit):
        serving.main(arguments.split())
    assert reason in capsys.readouterr().err
