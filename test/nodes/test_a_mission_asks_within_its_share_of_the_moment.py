"""How many questions a mission asks at once is known only when it asks: robots come and go."""

import pytest

from embodied_kv.nodes.missions.calls import Calls
from embodied_kv.planning.mission import Interrupted


class Shared(Calls):
    """shares: how many it may ask, in turn. cut: a question for each stream that gave way."""

    def __init__(self, *shares, cut=''):
        self._at_once = iter(shares).__next__
        self.asked, self._cut = [], [*cut]

    def _streams(self, questions):
        self.asked.append(''.join(questions))
        return {question: question for question in questions}

    def _said(self, question):
        if question in self._cut:
            return self._cut.remove(question)
        return question.upper()


def test_once_the_share_is_smaller_it_asks_fewer():
    mission = Shared(3, 1, 1)
    assert mission.ask('abcde') == [*'ABCDE'] and mission.asked == ['abc', 'd', 'e']


def test_what_gave_way_is_asked_again_within_the_new_share():
    mission = Shared(3, 1, 1, 1, cut='ab')
    assert mission.ask('abcd') == [*'ABCD'] and mission.asked == ['abc', 'd', 'a', 'b']


def test_a_question_that_comes_twice_is_asked_once():
    mission = Shared(2)
    assert mission.ask('aba') == [*'ABA'] and mission.asked == ['ab']


def test_an_answer_that_never_comes_is_no_sign_of_what_is_not_there():
    with pytest.raises(Interrupted, match=r'3 times .*: b \(raise engine.streams'):
        Shared(*[2] * 4, cut='bbb').ask('ab')
