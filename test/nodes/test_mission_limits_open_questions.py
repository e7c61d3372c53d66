"""A mission keeps at most `at_once` questions open, and repeats those whose stream was evicted."""

import pytest

from embodied_kv.nodes.missions.clients import MissionClients
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
