"""examples/follow_chunks.py: set-points from the first due action to the last one to execute."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_kv.msg import ActionChunk


@pytest.fixture
def said(monkeypatch):
    """Return a function that returns the example's output for a chunk of six actions.

    They are those of one joint, 0.0 to 0.5 rad.
    """
    monkeypatch.syspath_prepend(Path(__file__).resolve().parent.parent / 'examples')
    follow = importlib.import_module('follow_chunks').FollowChunks.on_chunk
    lines = []
    node = SimpleNamespace(get_logger=lambda: SimpleNamespace(info=lines.append))

    def say(**fields):
        values = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
        follow(node, ActionChunk(joint_names=['elbow'], chunk_size=6, values=values, **fields))
        return lines[-1]

    return say


def test_actions_that_passed_or_lie_beyond_the_horizon_are_left_out(said):
    line = said(first=2, execution_horizon=4)
    assert '2 actions ahead' in line and line.endswith('elbow +0.20')


def test_the_last_action_to_execute_is_held(said):
    line = said(first=3, execution_horizon=4)
    assert '1 actions ahead' in line and line.endswith('elbow +0.30')
