"""examples/episode_reset.py: after a reset the first chunk equals that of the episode."""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_kv.session.robot_session import RobotSession

OPTIONS = ['--weights', 'random', '--rollouts', '3', '--seconds', '0.4']


@pytest.fixture
def example(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(Path(__file__).resolve().parent.parent / 'examples')
    return importlib.import_module('episode_reset')


def test_a_line_for_each_rollout_and_a_rollback_before_all_but_the_first(example, capsys):
    example.main(OPTIONS)
    start, *rollouts = capsys.readouterr().out.splitlines()
    assert re.search(r'its start is a capsule of \d+ kB', start)
    assert len(rollouts) == 3
    for number, line in enumerate(rollouts):
        assert line.startswith(f'rollout {number}: ')
        assert ('same first chunk' in line) == (number > 0)
        assert line.endswith('time is up at 0.5 s')


def test_another_first_chunk_is_noticed(example, monkeypatch):
    replay = RobotSession.replay

    def other(self, name):
        chunk = replay(self, name)
        return replace(chunk, values=chunk.values + 1e-6)

    monkeypatch.setattr(RobotSession, 'replay', other)
    with pytest.raises(AssertionError, match='not the same start'):
        example.main(OPTIONS)
