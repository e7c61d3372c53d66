"""A mission keeps at most `at_once` questions open, and repeats those whose stream was evicted."""

import pytest

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.missions import clients
from embodied_kv.nodes.missions.clients import MissionClients, ServiceRefusedError
from embodied_kv.planning.mission import MissionInterruptedError


class Recorded(MissionClients):
    """Records the questions of each batch.

    cut: questions whose stream is evicted, once per occurrence.
    """

    def __init__(self, at_once, cut=''):
        self._at_once, self.asked, self._cut = at_once, [], [*cut]

    def _streams(self, questions):
        self.asked.append(''.join(questions))
        return {question: question for question in questions}

    def _said(self, question):
        if question in self._cut:
            return self._cut.remove(question)
        return question.upper()


def test_questions_are_sent_in_batches():
    mission = Recorded(3)
    assert mission.ask('abcde') == [*'ABCDE'] and mission.asked == ['abc', 'de']


def test_evicted_questions_are_repeated():
    mission = Recorded(3, cut='ab')
    assert mission.ask('abcd') == [*'ABCD'] and mission.asked == ['abc', 'd', 'ab']


def test_duplicate_questions_are_sent_once():
    mission = Recorded(2)
    assert mission.ask('aba') == [*'ABA'] and mission.asked == ['ab']


def test_missing_answer_interrupts_the_mission():
    with pytest.raises(MissionInterruptedError, match=r'3 times .*: b \(raise engine.streams'):
        Recorded(2, cut='bbb').ask('ab')


class Crowded(MissionClients):
    """Language refuses the first questions, because another client's is open."""

    def __init__(self, refused, code=ErrorCode.NO_ROOM):
        self.asked, self._refused, self._failure = [], refused, code

    def _send(self, name, question):
        self.asked.append(question)
        return question

    def _answered(self, name, question):
        if len(self.asked) <= self._refused:
            raise ServiceRefusedError('too many questions at once', self._failure)
        return type('Answer', (), {'stream': len(self.asked)})


def test_questions_wait_for_those_of_another_client():
    mission = Crowded(3)
    assert mission._streams(['a']) == {'a': 4} and mission.asked == ['a'] * 4


def test_questions_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(clients, 'PATIENCE', 0.05)
    with pytest.raises(ServiceRefusedError):
        Crowded(10**9)._streams(['a'])


def test_other_refusals_are_not_repeated():
    mission = Crowded(9, ErrorCode.UNAVAILABLE)
    with pytest.raises(ServiceRefusedError):
        mission._streams(['a'])
    assert mission.asked == ['a']
