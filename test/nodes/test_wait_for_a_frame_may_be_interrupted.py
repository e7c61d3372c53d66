"""A wait for a frame ends as soon as its caller is interrupted."""

import pytest

from embodied_kv.planning.mission import MissionInterruptedError
from embodied_kv.session import participant
from embodied_kv.session.participant import Participant, SceneObserver


class Blind(Participant):
    """A participant that makes frames, but never has a scene."""

    makes_frames = True


def test_who_waits_for_a_frame_is_told_to_stop(monkeypatch):
    monkeypatch.setattr(participant, 'PATIENCE', 1e9)
    waits, reasons = SceneObserver(Blind()), ['', '', 'cancelled']

    def check():
        if reason := reasons.pop(0):
            raise MissionInterruptedError(reason)

    with pytest.raises(MissionInterruptedError, match='cancelled'):
        waits.present_scene(check)
    assert not reasons and not waits.is_watched
