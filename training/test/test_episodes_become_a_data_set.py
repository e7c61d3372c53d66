"""Tabletop episodes become a LeRobot v3 data set with one task each and object positions."""

import sys

import numpy as np
import pytest

from embodied_kv.robots.embodiment import Embodiment
from training.data.lerobot_reader import LeRobotDataSet
from training.policy import export
from training.policy.episodes import (
    COLOUR_NAMES,
    SHAPE_NAMES,
    find_episodes,
    read_episode,
)
from training.policy.generate import make_episode


def command(monkeypatch, data, out):
    monkeypatch.setattr(sys, 'argv', ['export', '--data', str(data), str(out)])
    export.main()


def test_what_was_generated_is_in_the_data_set(tmp_path, monkeypatch, capsys):
    make_episode(0, tmp_path / 'npz', 90, 14)
    command(monkeypatch, tmp_path / 'npz', tmp_path / 'set')
    assert '1 episodes, 14 frames' in capsys.readouterr().out
    (path,) = find_episodes(tmp_path / 'npz')
    made = read_episode(path)
    data = LeRobotDataSet(tmp_path / 'set', Embodiment.load('tabletop'))
    read = data.read(0)
    frames = made.frames
    np.testing.assert_array_equal(read.action, frames['action'])
    np.testing.assert_array_equal(read.images['wrist'], frames['observation.images.wrist'])
    name = f'{COLOUR_NAMES[made.colours[0]]} {SHAPE_NAMES[made.shapes[0]]}'
    np.testing.assert_array_equal(read.positions[name], frames['truth.things'][:, 0, :3])
    np.testing.assert_array_equal(read.pixels['wrist', name], frames['truth.pixels'][:, 0, 1])
    there = [n for n, values in read.positions.items() if np.isfinite(values).all()]
    assert len(there) == (made.colours >= 0).sum()

    with pytest.raises(SystemExit):
        command(monkeypatch, tmp_path / 'npz', tmp_path / 'set')
    assert 'is not empty: name a new folder' in capsys.readouterr().err
