"""The package lerobot reads data sets of this package, which reads and learns from its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_set_cases import FPS, LENGTHS, level, write
from robot_cases import ROBOT, TEXT

from embodied_kv.model.checkpoints.open import open_checkpoint
from training.data.lerobot_reader import LeRobotDataSet

ROOT = Path(__file__).parents[2]
TOOL = [ROOT / 'tools' / 'with', 'lerobot']
SESSION = Path(__file__).parent / 'lerobot_session.py'
WRITTEN = 12, 9  # frames of the episodes that the session writes
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope='module')
def lerobot(tmp_path_factory):
    """Return a function that runs a command of the session, or skip if packages are missing."""
    made = subprocess.run(TOOL, capture_output=True, text=True, check=False)
    if made.returncode:
        reason = made.stderr.strip() or made.stdout.strip()
        assert 'DO NOT MATCH THE HASHES' not in reason, reason
        pytest.skip(f'lerobot 0.4.4: its packages are unavailable: {reason[-200:]}')

    def run(command, root):
        done = subprocess.run(
            [*TOOL, 'python', SESSION, command, root], capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]

    return run


def test_lerobot_reads_the_frames_that_are_written_here(lerobot, tmp_path):
    frames = lerobot('read', write(tmp_path / 'ours'))
    assert [frame['episode'] for frame in frames] == [0] * LENGTHS[0] + [1] * LENGTHS[1]
    for number, frame in enumerate(frames):
        episode = int(number >= LENGTHS[0])
        assert frame['task'] == f'task {episode}'
        assert frame['state'] == [number * 10.0 + i for i in range(5)]
        assert frame['action'] == [number * 10.0 + i for i in range(4)]
        assert frame['timestamp'] == pytest.approx((number - episode * LENGTHS[0]) / FPS)
        shape = [3, 48, 64]
        assert frame['images'] == {
            view: [shape, pytest.approx(level(number), abs=0.01)] for view in ('top', 'side')
        }


@pytest.fixture(scope='module')
def theirs(lerobot, tmp_path_factory):
    """Return a data set that LeRobot has written with its defaults."""
    root = tmp_path_factory.mktemp('theirs') / 'data'
    lerobot('write', root)
    return root


def test_data_sets_of_lerobot_are_read_with_their_av1_videos(theirs):
    data = LeRobotDataSet(theirs, ROBOT)
    assert data.lengths == WRITTEN
    codec = data.info['features']['observation.images.top']['info']['video.codec']
    assert codec == 'av1'
    for episode, length in enumerate(WRITTEN):
        read = data.read(episode)
        assert set(read.tasks) == {f'task {episode}'}
        counted = 10.0 * np.arange(length)[:, None]
        np.testing.assert_array_equal(read.state, counted + np.arange(5))
        np.testing.assert_array_equal(read.action, counted + np.arange(4) + episode)
        for images in read.images.values():
            means = images.reshape(length, -1).mean(1)
            np.testing.assert_allclose(means, 20 + 15 * np.arange(length), atol=3)


def test_a_policy_learns_from_a_data_set_of_lerobot(theirs, tmp_path):
    contract = tmp_path / 'gantry.yaml'
    contract.write_text(TEXT)
    options = f'--contract {contract} --data {theirs} --out {tmp_path / "out"}'
    options += ' --joint-steps 4 --batch 8'
    run = subprocess.run(
        [
            sys.executable,
            '-m',
            'training.run',
            *options.split(),
            '--joint-steps',
            '4',
            '--batch',
            '8',
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert not run.returncode, run.stdout + run.stderr
    policy = open_checkpoint(tmp_path / 'out' / 'policy').load()
    assert (policy.config.state_dim, policy.config.action_dim) == (5, 4)
