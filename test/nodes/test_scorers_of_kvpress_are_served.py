"""The scorers of the real package kvpress work in an engine, the benchmark and a suite."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = [ROOT / 'tools' / 'with', 'kvpress']
SESSIONS = {'engine/kvpress_session.py': 25, 'nodes/kvpress_nodes_session.py': 8}


@pytest.fixture(scope='module')
def environment():
    """Build the environment of kvpress, or skip with the reason if packages are unavailable."""
    made = subprocess.run(TOOL, capture_output=True, text=True, check=False)
    if made.returncode:
        said = made.stderr.strip() or made.stdout.strip()
        assert 'DO NOT MATCH THE HASHES' not in said, said
        pytest.skip(f'kvpress 0.5.5: its packages cannot be had: {said[-200:]}')


@pytest.mark.slow
@pytest.mark.parametrize('session', SESSIONS)
def test_all_of_a_session_passes(environment, session):
    command = [*TOOL, 'python', '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
    run = subprocess.run(
        [*command, ROOT / 'test' / session], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert not run.returncode, run.stdout + run.stderr
    assert int(re.search(r'(\d+) passed', run.stdout)[1]) == SESSIONS[session], run.stdout
