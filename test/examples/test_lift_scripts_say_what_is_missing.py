"""examples/robosuite: what is wrong is said in a line, with what to do, before anything runs."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def run(module, monkeypatch, capsys):
    """What a script says with these arguments, and how it ends."""

    def told(name, *arguments):
        monkeypatch.setattr('sys.argv', [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            module(name).main()
        return capsys.readouterr().err, ended.value.code

    return told


@pytest.mark.parametrize('name', ['lift', 'there.mcap'])
def test_a_recording_is_a_new_mcap(run, tmp_path, name):
    (tmp_path / 'there.mcap').touch()
    said, code = run('record', tmp_path / name)
    assert 'name a new file that ends with .mcap' in said and code == 2


def test_without_robosuite_it_says_how_to_make_it(module, run, tmp_path, monkeypatch):
    begin = module('link').World.__init__
    monkeypatch.setattr(begin, '__defaults__', (tmp_path / 'python',))
    said, code = run('record', tmp_path / 'new.mcap')
    assert said == f'{tmp_path / "python"} is missing: run examples/robosuite/setup\n'
    assert code == 1 and not (tmp_path / 'new.mcap').exists()


def test_a_world_that_ends_is_noticed(module, tmp_path):
    link = module('link')
    robot = link.Embodiment.load(str(link.CONTRACT))
    (tmp_path / 'python').write_text('#!/bin/sh\n')
    (tmp_path / 'python').chmod(0o755)
    with pytest.raises(RuntimeError, match='the world has ended'):
        link.World(robot, 96, tmp_path / 'python')


def test_versions_are_exact():
    example = Path(__file__).resolve().parents[2] / 'examples' / 'robosuite'
    lines = (example / 'requirements.txt').read_text().splitlines()
    wanted = [line for line in lines if not line.startswith('#')]
    assert all(re.fullmatch(r'[\w.-]+==[\w.]+', line) for line in wanted)
    assert {'robosuite==1.5.2', 'mujoco==3.3.7', 'openpi-client==0.1.2'} <= set(wanted)
