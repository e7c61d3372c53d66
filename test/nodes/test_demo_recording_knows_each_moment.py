"""A recording returns, for a time, the moment, the remaining plan and the texts until then."""

from types import SimpleNamespace

import numpy as np
import pytest
from demo_play import decision

from embodied_kv.demo.director import SECOND
from embodied_kv.demo.recording import Recording, Sentence

SEEN = {'front': np.zeros((2, 2, 3), np.uint8)}
ACTIONS = np.arange(1.0, 6.0)[:, None] * np.ones(7)  # action i is i + 1 everywhere


def moment(second, scene=1):
    return SimpleNamespace(stamp=round(second * SECOND), scene=scene)


@pytest.fixture
def recording():
    """Return a recording of moments at 10, 11 and 12 s, and a decision on the second one."""
    recording = Recording(longest=5.0)
    for second in (10, 11, 12):
        recording.add_moment(moment(second))
    recording.decide(decision(11 * SECOND, SEEN, np.zeros(7), ACTIONS))
    return recording


def test_the_moment_of_a_time_is_the_last_one_until_then(recording):
    found = [recording.moment(round(at * SECOND)) for at in (9.9, 10, 11.9, 99)]
    assert found == [None, recording.moments[0], recording.moments[1], recording.moments[2]]


def test_a_decision_counts_from_when_it_was_ready(recording):
    ready = recording.decisions[0].ready
    assert recording.decision(ready - 1) is None
    assert recording.decision(ready) is recording.decisions[0]


def test_a_decision_on_the_last_scene_has_no_meaning_in_the_next(recording):
    recording.add_moment(moment(13, scene=2))
    assert recording.decision(12 * SECOND) and recording.decision(13 * SECOND) is None


def test_the_path_goes_on_from_here_through_what_is_still_to_come(recording):
    here = np.full(7, 9.0)

    def path(second):
        return recording.decisions[0].path(here, round(second * SECOND))[:, 0].tolist()

    assert path(11.0) == [9, 2, 3, 4, 5]  # action 0 had passed when it was ready
    assert path(11.15) == [9, 3, 4, 5]
    assert path(11.4) == [9, 5]
    assert path(12.0) == [9]


def test_words_are_known_from_when_they_were_heard(recording):
    recording.add_text(Sentence(10_500_000_000, 'Subtask:', 'lift'))
    recording.add_text(Sentence(11_000_000_000, 'Is it done?', 'no'))
    recording.add_text(Sentence(11_500_000_000, 'Subtask:', 'lower'))
    assert recording.said(10 * SECOND) == {}
    assert recording.said(11 * SECOND) == {'Subtask:': 'lift', 'Is it done?': 'no'}
    assert list(recording.said(12 * SECOND).items())[-1] == ('Subtask:', 'lower')
    assert recording.said(12 * SECOND, since=11_200_000_000) == {'Subtask:': 'lower'}


def test_what_comes_after_the_longest_is_not_kept(recording):
    recording.add_moment(moment(15))
    recording.add_moment(moment(15.1))
    recording.decide(decision(16 * SECOND, SEEN, np.zeros(7), ACTIONS))
    recording.add_text(Sentence(16 * SECOND, 'Subtask:', 'lift'))
    assert recording.moments[-1].stamp == 15 * SECOND
    assert len(recording.decisions) == 1 and not recording.sentences
