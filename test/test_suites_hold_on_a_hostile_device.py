"""The suites of engine, memory and capsule pass on a device that is late and unclean.

Each runs in its own process, as `pytest --device=hostile` does.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAST = (
    'engine/test_no_row_is_read_beyond_its_length.py',
    'engine/test_engine_thread_resolves_every_future.py',
    'memory/test_an_evicted_unit_takes_all_its_layers.py',
)


def run(*tests):
    command = [sys.executable, '-m', 'pytest', '-q', '--device=hostile', '-p', 'no:cacheprovider']
    command += ['-m', 'not slow']  # slow tests there compile many settings
    paths = [str(ROOT / 'test' / test) for test in tests]
    done = subprocess.run(
        [*command, *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_part_of_the_suites_passes_on_a_hostile_device():
    run(*FAST)


@pytest.mark.slow
@pytest.mark.timeout(7200)  # an hour next to other work
@pytest.mark.parametrize('suite', ['engine', 'memory', 'capsule'])
def test_whole_suite_passes_on_a_hostile_device(suite):
    run(suite)
