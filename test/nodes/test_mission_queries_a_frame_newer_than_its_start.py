"""The first scene query of a mission is answered from a frame that was made after its start."""

from types import SimpleNamespace

import pytest

from embodied_kv.session import participant
from embodied_kv.session.participant import Participant, SceneObserver


class Seeing(Participant):
    """A participant that returns one scene after the other; the last one is repeated."""

    makes_frames = True

    def __init__(self, *stamps):
        self._left = [None if stamp is None else SimpleNamespace(stamp=stamp) for stamp in stamps]

    def scene(self):
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr(participant, 'POLL', 0.0)


def test_a_scene_of_before_is_not_taken():
    seen = SceneObserver(Seeing(1, 1, 1, 2))
    assert seen.present_scene(newer=True).stamp == 2
    assert seen.present_scene().stamp == 2, 'without the wish the present scene is enough'


def test_the_first_scene_is_taken_where_there_was_none():
    seen = SceneObserver(Seeing(None, None, 5))
    assert seen.present_scene(newer=True).stamp == 5


def test_a_scene_that_grew_too_old_meanwhile_is_not_taken():
    seen = SceneObserver(Seeing(1, 1, None, None, 2))
    assert seen.present_scene(newer=True).stamp == 2


def test_after_the_patience_what_there_is_counts(monkeypatch):
    monkeypatch.setattr(participant, 'PATIENCE', 0.05)
    robot = Seeing(1)
    seen = SceneObserver(robot)
    assert seen.present_scene(newer=True).stamp == 1
    robot.makes_frames = False
    assert seen.present_scene(newer=True).stamp == 1, 'no node makes frames'
