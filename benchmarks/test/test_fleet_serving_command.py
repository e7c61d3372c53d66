"""The command of benchmark fleet.serving reports every figure and refuses bad arguments."""

import json

import pytest

from benchmarks.fleet import trace_reader
from benchmarks.fleet.serving import __main__ as serving
from benchmarks.fleet.serving import measure
from benchmarks.fleet.workload import recorded_jobs
from embodied_kv.demo.sim.tasks import FAMILIES
from training.evaluate import worlds

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
    (tmp_path / 'profile.yaml').write_text(PROFILE)
    large = PROFILE.replace('2]', '32]')
    (tmp_path / 'large.yaml').write_text(large)


def given_run(robots, way):
    tasks = [dict(task=i, success=True, seconds=1.0, still=0.5, horizons=[3, 5]) for i in (0, 1)]
    sums = dict(batches=2, served=4, charged=1.0, computed=2.0, span=10.0)
    return dict(robots=robots, way=way, decisions=[(1, 1e-6)], tasks=tasks) | sums


def test_the_last_line_is_every_figure_of_given_runs(small, monkeypatch, capsys):
    def measured(plan, *_):
        return [given_run(robots, way) for robots, _, way in measure.settings(plan)]

    monkeypatch.setattr(measure, 'measure', measured)
    serving.main('--quick --robots 2 --checkpoint random --profile profile.yaml --json'.split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    sizes = [(row['robots'], row['tasks']) for row in found['rows']]
    assert sizes == [(1, 2), (1, 2), (2, 2), (2, 2)]
    assert found['engine']['computed_over_charged'] == 2
    assert {pair['robots'] for pair in found['pairs']} == {1, 2}


@pytest.mark.slow
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
    assert recorded_jobs(*trace_reader.read('trace.jsonl'))


@pytest.mark.parametrize(
    ('arguments', 'reason'),
    [
        ('--robots 0', '--robots are at least 1'),
        ('--checkpoint nowhere.safetensors', 'nowhere.safetensors does not exist'),
        ('--checkpoint random --profile nowhere.yaml', 'nowhere.yaml'),
        ('--checkpoint random --profile large.yaml', 'must hold at most 16 robots (got 32)'),
    ],
)
def test_bad_arguments_are_refused(small, capsys, arguments, reason):
    with pytest.raises(SystemExit):
        serving.main(arguments.split())
    assert reason in capsys.readouterr().err
