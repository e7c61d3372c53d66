"""The server serves openpi's unmodified client, which runs in its own locked environment."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from server_cases import REQUESTS, running_server

from embodied_kv.serving.websocket.extensions import KEY

ROOT = Path(__file__).parents[2]
TOOL, SESSION = (
    ROOT / 'tools' / 'openpi_client',
    Path(__file__).parent / 'openpi_client_session.py',
)
SHAPES = {'franka': [10, 8], 'libero': [10, 7], 'aloha': [50, 14]}
METADATA = {'aloha': {'reset_pose': [0.0, -1.5, 1.5, 0.0, 0.0, 0.0]}}


@pytest.fixture(scope='module')
def environment():
    """Create the environment, or skip the test if its packages are unavailable."""
    made = subprocess.run([TOOL], capture_output=True, text=True, check=False)
    if made.returncode:
        said = made.stderr.strip() or made.stdout.strip()
        assert 'DO NOT MATCH THE HASHES' not in said, said
        pytest.skip(f'openpi-client 0.1.2: its environment cannot be made: {said[-200:]}')


@pytest.mark.slow
def test_the_tests_in_its_wheel_pass(environment, tmp_path):
    run = subprocess.run(
        [
            *(TOOL, '-m', 'pytest', '--noconftest', '-p', 'no:cacheprovider'),
            *('--pyargs', 'openpi_client'),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'},
        check=False,
    )
    assert not run.returncode, run.stdout + run.stderr
    assert int(re.search(r'(\d+) passed', run.stdout)[1]) >= 21, run.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize('robot', REQUESTS)
def test_a_hundred_inferences_reset_broker_and_error(environment, robot):
    with running_server(robot) as opened:
        run = subprocess.run(
            [TOOL, SESSION, str(opened.port), robot],
            capture_output=True,
            text=True,
            env=os.environ | {'no_proxy': '*'},
            check=False,
        )
    assert not run.returncode, run.stderr
    saw = json.loads(run.stdout)
    assert {k: v for k, v in saw['metadata'].items() if k != KEY} == METADATA.get(robot, {})
    assert saw['shapes'] == [SHAPES[robot]] == [saw['after reset']]
    assert saw['of the broker'] == [SHAPES[robot][1:]]
    assert saw['dtypes'] == ['float32'] and saw['finite']
    assert saw['keys'] == ['actions', 'policy_timing', 'server_timing']
    assert 'must be present' in saw['error'] and 'File "' not in saw['error']
