"""The commands frame, parts, deadline and profile report every figure of their smallest run."""

import json

import pytest

from benchmarks import parts
from benchmarks.common import report
from benchmarks.deadline import __main__ as deadline
from benchmarks.deadline import serve
from benchmarks.fleet import profile
from benchmarks.frame import __main__ as frame
from embodied_kv.fleet.profile import read
from embodied_kv.runtime.compiled import Compiler


@pytest.fixture
def figures(monkeypatch, tmp_path, capsys):
    """Return a function that runs a command with the tiny model and returns its figures.

    It checks that the command prints a table and writes its JSON file and its plot.
    """
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(report, 'ceilings', lambda *_: dict(gflops=100.0, gbytes=10.0))

    def run(module, name, words, picture=True):
        module.main(f'--preset tiny --threads 1 --device cpu {words}'.split())
        *table, line = capsys.readouterr().out.splitlines()
        found = json.loads(line)
        assert table and found == json.loads((tmp_path / f'{name}.json').read_text())
        assert found['bench'] == name and (tmp_path / f'{name}.png').exists() == picture
        return found

    return run


def test_a_frame_is_done_in_every_way(figures):
    found = figures(frame, 'frame', '--frames 1 --tokens 8 --steps 1 2')
    assert [(row['N'], row['k']) for row in found['rows']] == [(8, 1), (8, 2)]
    assert all(row['actions_equal'] for row in found['rows'])


def test_frames_are_done_by_compiled_engines_of_one_size(figures, monkeypatch):
    engines = set()

    def compile(compiler, name, *_):
        engines.add(compiler.names)

    monkeypatch.setattr(Compiler, 'compile', compile)
    found = figures(frame, 'frame', '--frames 1 --tokens 8 --steps 1 2 --compile')
    assert found['compile'] == 'now' and all(row['actions_equal'] for row in found['rows'])
    assert len(engines) == 1


def test_every_phase_has_its_floor(figures):
    found = figures(parts, 'parts', '--repeats 1 --ways eager')
    phases = [row['phase'] for row in found['rows']]
    assert phases[:2] == ['prefill', 'denoise step'] and phases[-1] == 'decode step x16'
    assert all(row['floor_ms'] > 0 and row['eager_ms'] > 0 for row in found['rows'])


def test_deadlines_are_counted_in_every_run(figures, monkeypatch):
    monkeypatch.setattr(serve, 'SNAPSHOT_EVERY', 0.3)
    found = figures(deadline, 'deadline', '--deadlines 13')
    with_budget = ['budget on', 'budget on, snapshots', 'one KV budget, snapshots']
    runs = [*with_budget, 'budget off', 'empty loop']
    assert [row['run'] for row in found['rows']] == runs
    assert all(row['deadlines'] == 13 for row in found['rows'])


def test_a_profile_is_written_as_a_fleet_reads_it(figures, tmp_path):
    words = f'--robots 2 --repeats 1 --out {tmp_path / "made" / "p.yaml"}'
    found = figures(profile, 'fleet_profile', words, picture=False)
    assert [row['robots'] for row in found['batches']] == [1, 2]
    assert read(tmp_path / 'made' / 'p.yaml').sizes == (1, 2)
