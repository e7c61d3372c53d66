"""examples/robosuite: scripts report a problem and its remedy in one line before they start."""

import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / 'examples' / 'robosuite'


@pytest.fixture
def run(module, monkeypatch, capsys):
    """Return a function that runs a script and returns its error output and exit status."""

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


def test_what_is_left_of_a_recording_is_to_be_repaired_first(run, tmp_path):
    (tmp_path / 'lift.mcap.part').touch()
    said, code = run('record', tmp_path / 'lift.mcap')
    assert f'run python -m embodied_kv.data.repair {tmp_path / "lift.mcap.part"}' in said
    assert code == 2


def test_without_robosuite_it_says_how_to_make_it(module, run, tmp_path, monkeypatch):
    monkeypatch.setattr(module('link'), 'PYTHON', tmp_path / 'python')
    said, code = run('record', tmp_path / 'new.mcap')
    assert said == f'{tmp_path / "python"} is missing: run examples/robosuite/setup\n'
    assert code == 1 and not (tmp_path / 'new.mcap').exists()


def test_a_world_that_ends_is_noticed(module, tmp_path):
    link = module('link')
    (tmp_path / 'python').write_text('#!/bin/sh\n')
    (tmp_path / 'python').chmod(0o755)
    with pytest.raises(RuntimeError, match='the world has ended'):
        link.World(link.ROBOT, 96, link.HERE, tmp_path / 'python')


@pytest.fixture
def greeting(module, tmp_path):
    """Return a function that starts a world; it sends its greeting and runs a line of sh."""
    link, robot = module('link'), module('link').ROBOT
    ranges = np.array([robot.contract.limits[joint].position for joint in robot.joints[:7]])
    data = module('remote').codec.pack({'ranges': ranges})
    (tmp_path / 'greeting').write_bytes(len(data).to_bytes(4, 'big') + data)
    python = tmp_path / 'python'

    def world(line):
        python.write_text(f'#!/bin/sh\ncat {tmp_path / "greeting"}\n{line}\n')
        python.chmod(0o755)
        return link.World(robot, 96, link.HERE, python)

    return world


def test_a_world_that_ends_later_is_noticed_and_leaves_no_process(greeting):
    with pytest.raises(RuntimeError, match='the world has ended'), greeting('exit 3') as world:
        world._process.wait(60)
        world.reset(0)
    assert world._process.returncode == 3


def test_a_world_that_does_not_end_is_killed(module, greeting, monkeypatch):
    monkeypatch.setattr(module('remote'), 'PATIENCE', 0.1)
    with greeting('exec sleep 600') as world:
        pass
    assert world._process.returncode == -signal.SIGKILL


def test_a_python_that_robosuite_does_not_run_on_is_refused(tmp_path):
    """The shell finds a python3 of version 3.10."""
    python = tmp_path / 'python3'
    python.write_text('#!/bin/sh\ncase $1 in -V) echo Python 3.10.12;; *) exit 1;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        [EXAMPLE / 'setup'],
        env={**os.environ, 'PYTHON': str(python)},
        capture_output=True,
        text=True,
    )
    assert "Python 3.10.12: robosuite's environment wants Python 3.11 or 3.12" in done.stderr
    assert done.returncode == 1 and 'PYTHON=python3.12' in done.stderr


@pytest.mark.parametrize(
    ('example', 'pins'),
    [
        ('robosuite', {'robosuite==1.5.2', 'mujoco==3.3.7', 'openpi-client==0.1.2'}),
        ('aloha', {'gym-aloha==0.1.5', 'mujoco==3.8.1', 'openpi-client==0.1.2'}),
    ],
)
def test_versions_and_their_files_are_exact(example, pins):
    lines = (
        (EXAMPLE.parent / example / 'requirements.txt')
        .read_text()
        .replace('\\\n', '')
        .splitlines()
    )
    wanted = [line.split() for line in lines if not line.startswith('#')]
    assert all(re.fullmatch(r'[\w.-]+==[\w.]+', pinned) for pinned, *_ in wanted)
    assert all(
        hashes and all(re.fullmatch(r'--hash=sha256:[0-9a-f]{64}', one) for one in hashes)
        for _, *hashes in wanted
    )
    assert pins <= {pinned for pinned, *_ in wanted}
