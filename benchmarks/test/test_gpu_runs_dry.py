"""`tools/gpu --dry` runs from any folder, marks its figures and skips what needs a card."""

import json
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'gpu'


def test_the_tool_says_its_stages():
    run = subprocess.run([TOOL, '--help'], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and 'facts, kernels, replay, agree, pi05' in run.stdout


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_the_cheapest_stages_are_run(tmp_path):
    names = ('facts', 'kernels', 'threads', 'compression', 'loading', 'peers')
    words = [TOOL, '--dry', '--out', tmp_path / 'found', '--budget', '14', '--stages', *names]
    run = subprocess.run(words, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    written = json.loads((tmp_path / 'found/results.json').read_text())
    found = written['stages']
    assert written['dry'] and {name: f['status'] for name, f in found.items()} == {
        'facts': 'ok',
        'kernels': 'ok',
        'threads': 'ok',
        'compression': 'ok',
        'loading': 'ok',
        'peers': 'skipped',
    }
    assert found['kernels']['figures']['ok'] and found['loading']['figures']['ok']
    assert 'DRY' in run.stdout and '9 of 9 agree' in run.stdout
